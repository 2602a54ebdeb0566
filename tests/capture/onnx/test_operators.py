"""Operators on fresh random data:

`load_graph` + a strategy against the reference evaluator, and ONNX Runtime in float32.
"""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from planish.capture.onnx import load_graph
from tests.capture.onnx.running import (
    STRATEGIES,
    assert_same,
    check,
    make_model,
    one_node,
    onnxruntime_outputs,
    run,
)

FLOATS = (np.float16, np.float32, np.float64)
INTEGERS = (np.int8, np.int32, np.int64, np.uint8)
SPECIALS = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0]


def rng_of(*what: object) -> np.random.Generator:
    return np.random.default_rng(abs(hash(str(what))) % 2**32)


def floats(rng: np.random.Generator, dtype: Any, *shape: int, low: float = -3, high: float = 3) -> np.ndarray:
    return rng.uniform(low, high, shape).astype(dtype)


def integers(rng: np.random.Generator, dtype: Any, *shape: int) -> np.ndarray:
    return rng.integers(0 if np.dtype(dtype).kind == "u" else -20, 20, shape).astype(dtype)


def in_onnxruntime(model: Any, feeds: dict[str, np.ndarray], factor: float = 16) -> None:
    for strategy in STRATEGIES:
        assert_same(run(load_graph(model), feeds, strategy), onnxruntime_outputs(model, feeds), factor)


def check_equal(model: Any, feeds: dict[str, np.ndarray], expected: np.ndarray) -> None:
    for strategy in STRATEGIES:
        got, = run(load_graph(model), feeds, strategy)
        np.testing.assert_array_equal(got, expected)


UNARY = [
    "Abs",
    "Neg",
    "Sign",
    "Sqrt",
    "Reciprocal",
    "Exp",
    "Log",
    "Sin",
    "Cos",
    "Tan",
    "Asin",
    "Acos",
    "Atan",
    "Sinh",
    "Cosh",
    "Tanh",
    "Asinh",
    "Acosh",
    "Atanh",
    "Erf",
    "Sigmoid",
    "Floor",
    "Ceil",
    "Round",
    "IsNaN",
    "IsInf",
    "Relu",
    "Softplus",
    "Softsign",
    "Elu",
    "Selu",
    "Celu",
    "LeakyRelu",
    "HardSigmoid",
    "HardSwish",
    "ThresholdedRelu",
    "Mish",
    "Identity",
]


IN_FLOAT32 = {"Erf", "HardSwish"}  # the reference evaluator computes these, or their constants, in float32


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("op_type", UNARY)
def test_unary(op_type: str, dtype: Any) -> None:
    if dtype is np.float64 and op_type in IN_FLOAT32:
        dtype = np.float32
    rng = rng_of(op_type, dtype)
    low = {"Log": 0.01, "Sqrt": 0, "Acosh": 1, "Asin": -1, "Acos": -1, "Atanh": -0.99}.get(op_type, -3)
    high = {"Asin": 1, "Acos": 1, "Atanh": 0.99}.get(op_type, 3)
    model, feeds = one_node(op_type, [floats(rng, dtype, 3, 17, low=low, high=high)], opset=20)
    check(model, feeds, factor=8 if dtype != np.float16 else 3)


@pytest.mark.parametrize(
    "op_type", ["Abs", "Neg", "Sign", "Exp", "Floor", "Ceil", "Round", "IsNaN", "IsInf", "Relu", "Tanh"]
)
def test_special_values(op_type: str) -> None:
    model, feeds = one_node(op_type, [np.array([*SPECIALS, 0.5, 1.5, -2.5], np.float32)])
    in_onnxruntime(model, feeds)


@pytest.mark.parametrize("dtype", FLOATS + INTEGERS)
@pytest.mark.parametrize(
    "op_type",
    ["Add", "Sub", "Mul", "Div", "Max", "Min", "Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual"],
)
def test_binary(op_type: str, dtype: Any) -> None:
    rng = rng_of(op_type, dtype)
    make = floats if np.dtype(dtype).kind == "f" else integers
    x, y = make(rng, dtype, 4, 1, 9), make(rng, dtype, 5, 1)
    if op_type == "Div":
        y[y == 0] = 3
    model, feeds = one_node(op_type, [x, y])
    if op_type == "Div" and np.dtype(dtype).kind in "iu":
        check_equal(model, feeds, np.trunc(x.astype(np.float64) / y).astype(dtype))
    else:
        check(model, feeds)


@pytest.mark.parametrize("op_type", ["Max", "Min"])
def test_nan_wins(op_type: str) -> None:
    values = np.array(SPECIALS, np.float32)
    model, feeds = one_node(op_type, [values[:, None], values])
    check_equal(model, feeds, {"Max": np.maximum, "Min": np.minimum}[op_type](values[:, None], values))


@pytest.mark.parametrize("op_type", ["And", "Or", "Xor"])
def test_logic(op_type: str) -> None:
    rng = rng_of(op_type)
    check(*one_node(op_type, [rng.random((3, 1)) < 0.5, rng.random((1, 5)) < 0.5]))


CASES: dict[str, tuple[Any, ...]] = {
    # name: op, operands, keywords of one_node
    "not": ("Not", [lambda r: r.random(7) < 0.5], {}),
    "pow": ("Pow", [lambda r: floats(r, np.float32, 5, low=0.1), lambda r: floats(r, np.float32, 5)], {}),
    "pow of float and int": (
        "Pow",
        [lambda r: floats(r, np.float32, 5), lambda r: integers(r, np.int64, 5)],
        {},
    ),
    "mod": ("Mod", [lambda r: integers(r, np.int32, 9), lambda r: np.full(9, -3, np.int32)], {}),
    "fmod": ("Mod", [lambda r: floats(r, np.float32, 9), lambda r: np.full(9, 0.7, np.float32)], {"fmod": 1}),
    "where": (
        "Where",
        [lambda r: r.random((3, 1)) < 0.5, lambda r: floats(r, np.float32, 4), lambda r: np.float32(2)],
        {},
    ),
    "sum": ("Sum", [lambda r: floats(r, np.float32, 3, 1)] * 3, {}),
    "mean": ("Mean", [lambda r: floats(r, np.float32, 3, 1)] * 3, {}),
    "clip": (
        "Clip",
        [lambda r: floats(r, np.float32, 20), lambda r: np.float32(-1), lambda r: np.float32(1)],
        {},
    ),
    "clip above": ("Clip", [lambda r: floats(r, np.float32, 20), None, lambda r: np.float32(1)], {}),
    "clip by attributes": (
        "Clip",
        [lambda r: floats(r, np.float32, 20)],
        {"opset": 6, "min": -1.0, "max": 0.5},
    ),
    "prelu": ("PRelu", [lambda r: floats(r, np.float32, 2, 3, 4), lambda r: floats(r, np.float32, 3, 1)], {}),
    "gelu": ("Gelu", [lambda r: floats(r, np.float32, 33)], {"opset": 20}),
    "gelu by tanh": ("Gelu", [lambda r: floats(r, np.float32, 33)], {"opset": 20, "approximate": "tanh"}),
    "cast to int": ("Cast", [lambda r: floats(r, np.float32, 9)], {"to": 7}),
    "cast to half": ("Cast", [lambda r: floats(r, np.float32, 9)], {"to": 10}),
    "cast to bool": ("Cast", [lambda r: integers(r, np.int32, 9)], {"to": 9}),
    "matmul": (
        "MatMul",
        [lambda r: floats(r, np.float32, 2, 1, 3, 5), lambda r: floats(r, np.float32, 4, 5, 7)],
        {},
    ),
    "matmul of vector": (
        "MatMul",
        [lambda r: floats(r, np.float32, 5), lambda r: floats(r, np.float32, 5, 7)],
        {},
    ),
    "gemm": (
        "Gemm",
        [
            lambda r: floats(r, np.float32, 5, 3),
            lambda r: floats(r, np.float32, 7, 5),
            lambda r: floats(r, np.float32, 7),
        ],
        {"transA": 1, "transB": 1, "alpha": 0.5, "beta": 2.0},
    ),
    "gemm without c": (
        "Gemm",
        [lambda r: floats(r, np.float32, 3, 5), lambda r: floats(r, np.float32, 5, 2)],
        {},
    ),
    "einsum": (
        "Einsum",
        [lambda r: floats(r, np.float32, 2, 3, 4), lambda r: floats(r, np.float32, 2, 4, 5)],
        {"equation": "bij,bjk->bki"},
    ),
    "einsum with dots": (
        "Einsum",
        [lambda r: floats(r, np.float32, 2, 3, 4), lambda r: floats(r, np.float32, 4, 5)],
        {"equation": "...ij,jk"},
    ),
    "einsum of a diagonal": ("Einsum", [lambda r: floats(r, np.float32, 2, 3, 3)], {"equation": "bii->bi"}),
    "einsum of three": (
        "Einsum",
        [
            lambda r: floats(r, np.float32, 3, 4),
            lambda r: floats(r, np.float32, 4, 5),
            lambda r: floats(r, np.float32, 5, 3),
        ],
        {"equation": "ij,jk,ki->i"},
    ),
    "softmax": ("Softmax", [lambda r: floats(r, np.float32, 2, 3, 4)], {"axis": 1}),
    "softmax of opset 11": ("Softmax", [lambda r: floats(r, np.float32, 2, 3, 4)], {"opset": 11, "axis": 1}),
    "log_softmax": ("LogSoftmax", [lambda r: floats(r, np.float32, 2, 3, 4)], {}),
    "layer_norm": (
        "LayerNormalization",
        [
            lambda r: floats(r, np.float32, 2, 3, 8),
            lambda r: floats(r, np.float32, 8),
            lambda r: floats(r, np.float32, 8),
        ],
        {"epsilon": 1e-3},
    ),
    "layer_norm of two axes": (
        "LayerNormalization",
        [lambda r: floats(r, np.float32, 2, 3, 8), lambda r: floats(r, np.float32, 3, 8)],
        {"axis": 1},
    ),
    "batch_norm": (
        "BatchNormalization",
        [lambda r: floats(r, np.float32, 2, 3, 4, 5), *[lambda r: floats(r, np.float32, 3, low=0.1)] * 4],
        {},
    ),
    "instance_norm": (
        "InstanceNormalization",
        [lambda r: floats(r, np.float32, 2, 3, 4, 5), *[lambda r: floats(r, np.float32, 3)] * 2],
        {},
    ),
    "conv": (
        "Conv",
        [
            lambda r: floats(r, np.float32, 2, 4, 9, 8),
            lambda r: floats(r, np.float32, 6, 2, 3, 2),
            lambda r: floats(r, np.float32, 6),
        ],
        {"group": 2, "pads": [1, 0, 2, 1], "strides": [2, 1], "dilations": [1, 2]},
    ),
    "conv same": (
        "Conv",
        [lambda r: floats(r, np.float32, 1, 3, 10), lambda r: floats(r, np.float32, 4, 3, 4)],
        {"auto_pad": "SAME_UPPER", "strides": [3]},
    ),
    "conv_transpose": (
        "ConvTranspose",
        [lambda r: floats(r, np.float32, 1, 4, 5, 4), lambda r: floats(r, np.float32, 4, 3, 3, 3)],
        {"group": 2, "strides": [2, 3], "pads": [1, 0, 1, 2], "output_padding": [1, 0]},
    ),
    "max_pool": (
        "MaxPool",
        [lambda r: floats(r, np.float32, 1, 2, 9, 9)],
        {"kernel_shape": [3, 2], "strides": [2, 2], "pads": [1, 1, 1, 0], "ceil_mode": 1},
    ),
    "average_pool": (
        "AveragePool",
        [lambda r: floats(r, np.float32, 1, 2, 9, 9)],
        {"kernel_shape": [3, 2], "strides": [2, 2], "pads": [1, 1, 1, 0]},
    ),
    "average_pool with padding": (
        "AveragePool",
        [lambda r: floats(r, np.float32, 1, 2, 9)],
        {"kernel_shape": [3], "pads": [1, 1], "count_include_pad": 1},
    ),
    "global_average_pool": ("GlobalAveragePool", [lambda r: floats(r, np.float32, 2, 3, 4, 5)], {}),
    "global_max_pool": ("GlobalMaxPool", [lambda r: floats(r, np.float32, 2, 3, 4, 5)], {}),
    "reshape": (
        "Reshape",
        [lambda r: floats(r, np.float32, 2, 3, 4), lambda r: np.array([0, -1, 2])],
        {"fixed": [1]},
    ),
    "flatten": ("Flatten", [lambda r: floats(r, np.float32, 2, 3, 4)], {"axis": 2}),
    "squeeze": (
        "Squeeze",
        [lambda r: floats(r, np.float32, 2, 1, 4), lambda r: np.array([-2])],
        {"fixed": [1]},
    ),
    "squeeze by attribute": (
        "Squeeze",
        [lambda r: floats(r, np.float32, 2, 1, 4)],
        {"opset": 11, "axes": [1]},
    ),
    "unsqueeze": (
        "Unsqueeze",
        [lambda r: floats(r, np.float32, 2, 4), lambda r: np.array([0, -1])],
        {"fixed": [1]},
    ),
    "transpose": ("Transpose", [lambda r: floats(r, np.float32, 2, 3, 4)], {"perm": [2, 0, 1]}),
    "transpose all": ("Transpose", [lambda r: floats(r, np.float32, 2, 3, 4)], {}),
    "expand": (
        "Expand",
        [lambda r: floats(r, np.float32, 3, 1), lambda r: np.array([2, 1, 4])],
        {"fixed": [1]},
    ),
    "tile": ("Tile", [lambda r: floats(r, np.float32, 2, 3), lambda r: np.array([2, 3])], {"fixed": [1]}),
    "concat": (
        "Concat",
        [lambda r: floats(r, np.float32, 2, 3), lambda r: floats(r, np.float32, 2, 1)],
        {"axis": -1},
    ),
    "split": (
        "Split",
        [lambda r: floats(r, np.float32, 2, 7), lambda r: np.array([2, 5])],
        {"fixed": [1], "axis": 1, "outputs": 2},
    ),
    "split evenly": (
        "Split",
        [lambda r: floats(r, np.float32, 6)],
        {"opset": 18, "num_outputs": 3, "outputs": 3},
    ),
    "slice": (
        "Slice",
        [
            lambda r: floats(r, np.float32, 9, 8),
            lambda r: np.array([1, -2]),
            lambda r: np.array([7, 0]),
            lambda r: np.array([0, 1]),
            lambda r: np.array([2, -3]),
        ],
        {"fixed": [1, 2, 3, 4]},
    ),
    "slice to the ends": (
        "Slice",
        [
            lambda r: floats(r, np.float32, 9),
            lambda r: np.array([2**63 - 1]),
            lambda r: np.array([-(2**63)]),
            lambda r: np.array([0]),
            lambda r: np.array([-1]),
        ],
        {"fixed": [1, 2, 3, 4]},
    ),
    "slice by attributes": (
        "Slice",
        [lambda r: floats(r, np.float32, 9, 8)],
        {"opset": 9, "starts": [1, -3], "ends": [99, -1], "axes": [1, 0]},
    ),
    "pad": (
        "Pad",
        [lambda r: floats(r, np.float32, 3, 4), lambda r: np.array([1, 0, 2, 3]), lambda r: np.float32(7)],
        {"fixed": [1]},
    ),
    "pad and crop": (
        "Pad",
        [lambda r: floats(r, np.float32, 3, 4), lambda r: np.array([-1, 0, 2, -3])],
        {"fixed": [1]},
    ),
    "pad reflect": (
        "Pad",
        [lambda r: floats(r, np.float32, 3, 4), lambda r: np.array([1, 2, 1, 0])],
        {"fixed": [1], "mode": "reflect"},
    ),
    "pad edge": (
        "Pad",
        [lambda r: floats(r, np.float32, 3, 4), lambda r: np.array([1, 2, 1, 0])],
        {"fixed": [1], "mode": "edge"},
    ),
    "gather": ("Gather", [lambda r: floats(r, np.float32, 5, 3), lambda r: np.array([[0, -1], [2, 4]])], {}),
    "gather columns": ("Gather", [lambda r: floats(r, np.float32, 5, 3), lambda r: np.array(1)], {"axis": 1}),
    "gather_elements": (
        "GatherElements",
        [lambda r: floats(r, np.float32, 3, 3), lambda r: np.array([[0, -1, 1]])],
        {"axis": 1},
    ),
    "gather_nd": (
        "GatherND",
        [lambda r: floats(r, np.float32, 3, 4), lambda r: np.array([[0, 1], [2, -1]])],
        {},
    ),
    "scatter_elements": (
        "ScatterElements",
        [
            lambda r: floats(r, np.float32, 3, 3),
            lambda r: np.array([[2, 0, -1]]),
            lambda r: floats(r, np.float32, 1, 3),
        ],
        {"reduction": "add", "opset": 18},
    ),
    "scatter_nd": (
        "ScatterND",
        [
            lambda r: floats(r, np.float32, 4, 3),
            lambda r: np.array([[3], [1]]),
            lambda r: floats(r, np.float32, 2, 3),
        ],
        {},
    ),
    "trilu": ("Trilu", [lambda r: floats(r, np.float32, 2, 4, 5), lambda r: np.array(1)], {"upper": 0}),
    "cumsum": (
        "CumSum",
        [lambda r: floats(r, np.float32, 3, 5), lambda r: np.array(1)],
        {"fixed": [1], "reverse": 1, "exclusive": 1},
    ),
    "topk": (
        "TopK",
        [lambda r: floats(r, np.float32, 3, 9), lambda r: np.array([4])],
        {"fixed": [1], "outputs": 2},
    ),
    "topk smallest": (
        "TopK",
        [lambda r: floats(r, np.float32, 3, 9), lambda r: np.array([4])],
        {"fixed": [1], "outputs": 2, "largest": 0},
    ),
    "argmax": ("ArgMax", [lambda r: integers(r, np.float32, 3, 50)], {"axis": 1, "keepdims": 0}),
    "argmin, last": (
        "ArgMin",
        [lambda r: integers(r, np.float32, 3, 50)],
        {"axis": 1, "select_last_index": 1},
    ),
    "hardmax": ("Hardmax", [lambda r: integers(r, np.float32, 3, 9)], {"axis": 1}),
    "one_hot": (
        "OneHot",
        [lambda r: np.array([0, 2, -1, 9]), lambda r: np.array(3), lambda r: np.array([-1, 2], np.float32)],
        {"fixed": [1]},
    ),
    "range": (
        "Range",
        [lambda r: np.array(3), lambda r: np.array(20), lambda r: np.array(4)],
        {"fixed": [0, 1, 2]},
    ),
    "constant_of_shape": ("ConstantOfShape", [lambda r: np.array([2, 3])], {"fixed": [0]}),
    "shape": ("Shape", [lambda r: floats(r, np.float32, 2, 3, 4)], {"start": 1}),
    "size": ("Size", [lambda r: floats(r, np.float32, 2, 3, 4)], {}),
    "dropout": ("Dropout", [lambda r: floats(r, np.float32, 9)], {}),
    "lrn": ("LRN", [lambda r: floats(r, np.float32, 1, 6, 3, 3)], {"size": 3}),
    "resize nearest": (
        "Resize",
        [lambda r: floats(r, np.float32, 1, 2, 5, 4), None, lambda r: np.array([1, 1, 2, 3], np.float32)],
        {"fixed": [2], "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"},
    ),
    "resize linear": (
        "Resize",
        [lambda r: floats(r, np.float32, 1, 2, 5, 4), None, None, lambda r: np.array([1, 2, 8, 3])],
        {"fixed": [3], "mode": "linear"},
    ),
    "resize cubic": (
        "Resize",
        [lambda r: floats(r, np.float32, 1, 1, 5, 4), None, None, lambda r: np.array([1, 1, 9, 11])],
        {"fixed": [3], "mode": "cubic", "coordinate_transformation_mode": "align_corners"},
    ),
    "resize smaller": (
        "Resize",
        [lambda r: floats(r, np.float32, 1, 1, 9, 8), None, None, lambda r: np.array([1, 1, 4, 3])],
        {"fixed": [3], "mode": "linear", "antialias": 1, "opset": 18},
    ),
    "qlinear_matmul": (
        "QLinearMatMul",
        [
            lambda r: integers(r, np.uint8, 3, 5),
            lambda r: np.float32(0.1),
            lambda r: np.uint8(3),
            lambda r: integers(r, np.uint8, 5, 4),
            lambda r: np.float32(0.2),
            lambda r: np.uint8(5),
            lambda r: np.float32(0.3),
            lambda r: np.uint8(9),
        ],
        {},
    ),
    "qlinear_conv": (
        "QLinearConv",
        [
            lambda r: integers(r, np.uint8, 1, 3, 6, 6),
            lambda r: np.float32(0.1),
            lambda r: np.uint8(3),
            lambda r: integers(r, np.int8, 4, 3, 3, 3),
            lambda r: floats(r, np.float32, 4, low=0.1),
            lambda r: np.zeros(4, np.int8),
            lambda r: np.float32(0.9),
            lambda r: np.uint8(99),
            lambda r: integers(r, np.int32, 4),
        ],
        {"fixed": [3, 5, 8]},
    ),
    "matmul_integer": (
        "MatMulInteger",
        [lambda r: integers(r, np.uint8, 3, 5), lambda r: integers(r, np.int8, 5, 4), lambda r: np.uint8(3)],
        {},
    ),
    "quantize": (
        "QuantizeLinear",
        [
            lambda r: floats(r, np.float32, 50, low=-40, high=40),
            lambda r: np.float32(0.1),
            lambda r: np.array(3, np.int8),
        ],
        {},
    ),
    "dequantize": (
        "DequantizeLinear",
        [lambda r: integers(r, np.uint8, 9), lambda r: np.float32(0.1), lambda r: np.array(3, np.uint8)],
        {},
    ),
}


# The reference evaluator does not do these: another opset's meaning, groups, cropping, other sizes, its own
# rounding.
ONNXRUNTIME_ONLY = {
    "softmax of opset 11",
    "conv_transpose",
    "pad and crop",
    "gather_elements",
    "lrn",
    "dequantize",
    "qlinear_conv",
    "resize smaller",
}


@pytest.mark.parametrize("name", CASES)
def test_case(name: str) -> None:
    op_type, makers, keywords = CASES[name]
    rng = rng_of(name)
    model, feeds = one_node(op_type, [None if m is None else np.asarray(m(rng)) for m in makers], **keywords)
    if name not in ONNXRUNTIME_ONLY:
        check(model, feeds)
    in_onnxruntime(model, feeds)


REDUCTIONS = [
    "ReduceSum",
    "ReduceMean",
    "ReduceMax",
    "ReduceMin",
    "ReduceProd",
    "ReduceL1",
    "ReduceL2",
    "ReduceLogSum",
    "ReduceLogSumExp",
    "ReduceSumSquare",
]


@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("opset", [11, 17, 18])
@pytest.mark.parametrize("op_type", REDUCTIONS)
def test_reduction(op_type: str, opset: int, keepdims: int) -> None:
    x = floats(rng_of(op_type, opset), np.float32, 3, 4, 5, low=0.1)
    as_operand = opset >= (13 if op_type == "ReduceSum" else 18)
    if as_operand:
        model, feeds = one_node(op_type, [x, np.array([0, -1])], fixed=[1], opset=opset, keepdims=keepdims)
    else:
        model, feeds = one_node(op_type, [x], opset=opset, axes=[0, -1], keepdims=keepdims)
    check(model, feeds, factor=16)
    in_onnxruntime(model, feeds)
    check(*one_node(op_type, [x], opset=opset, keepdims=keepdims), factor=16)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("op_type", ["Softmax", "ReduceSum", "ReduceMean", "MatMul"])
def test_dtypes(op_type: str, dtype: Any) -> None:
    rng = rng_of(op_type, dtype)
    operands = [floats(rng, dtype, 3, 40)] + [floats(rng, dtype, 40, 5)] * (op_type == "MatMul")
    check(*one_node(op_type, operands, opset=13), factor=8 if dtype != np.float16 else 4)


def test_broadcast_of_opset_6() -> None:
    """Operand 1 lies along the axes of operand 0 from `axis` on."""
    rng = rng_of("opset 6")
    x, y = floats(rng, np.float32, 2, 3, 4), floats(rng, np.float32, 3)
    model, feeds = one_node("Add", [x, y], opset=6, broadcast=1, axis=1)
    check_equal(model, feeds, x + y[:, None])


def test_constant_attributes() -> None:
    from onnx import helper

    nodes = [
        helper.make_node("Constant", [], ["a"], value_float=2.5),
        helper.make_node("Constant", [], ["b"], value_ints=[1, 2]),
        helper.make_node("Cast", ["b"], ["c"], to=1),
        helper.make_node("Mul", ["a", "c"], ["d"]),
        helper.make_node("Mul", ["d", "x"], ["y"]),
    ]
    x = np.array([3, 4], np.float32)
    check(make_model(nodes, {"x": x}, ["y"]), {"x": x})
