"""The loops IR: every hand-written kernel prints, parses, verifies, and means what NumPy says."""
from __future__ import annotations

import numpy as np
import pytest

from planish.errors import ParseError, ShapeError, SignatureError
from planish.schedule.expression import Scope, spell
from planish.schedule.interpret import identity, interpret_kernel, stable_order
from planish.schedule.kernel import Apply, Axis, Buffer, Const, Index, Kernel, Load, Stage, Store
from planish.schedule.text import parse_kernel, print_kernel
from planish.schedule.verify import verify_kernel
from planish.types import (
    BFLOAT16,
    BOOL,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    INT8,
    INT32,
    INT64,
    UINT8,
    DType,
    TensorType,
)
from tests.schedule.kernels import EXAMPLES, Example


@pytest.mark.parametrize("example", EXAMPLES, ids=str)
def test_prints_what_it_parsed(example: Example) -> None:
    assert print_kernel(parse_kernel(example.text)) == example.text


@pytest.mark.parametrize("example", EXAMPLES, ids=str)
def test_is_well_formed(example: Example) -> None:
    verify_kernel(parse_kernel(example.text))


@pytest.mark.parametrize("example", EXAMPLES, ids=str)
def test_means_what_numpy_says(example: Example) -> None:
    arrays = example.inputs(np.random.default_rng())
    results = interpret_kernel(parse_kernel(example.text), arrays, example.sizes)
    for name, expected in example.meaning(arrays).items():
        assert results[name].dtype == expected.dtype and results[name].shape == expected.shape
        found, wanted = results[name].astype(np.float64), expected.astype(np.float64)
        np.testing.assert_allclose(found, wanted, example.rtol, 1e-6)


# --- expressions

X = Buffer("x", TensorType(FLOAT32, (8,)))
Y = Buffer("y", TensorType(FLOAT32, (8,)))
A = Axis("a", 8)


def mapped(value: object, *, inputs: tuple[Buffer, ...] = (X,)) -> Kernel:
    stage = Stage("t0", (A,), value, FLOAT32, store=Store(Y, (A.symbol,)))  # type: ignore[arg-type]
    return Kernel("k", (), (stage,), inputs, (Y,))


def test_what_is_used_twice_gets_a_name_and_stays_one_value() -> None:
    value: object = Load(X, (A.symbol,))
    for _ in range(100):
        value = Apply("add", (value, value), FLOAT32)  # type: ignore[arg-type]
    kernel = verify_kernel(mapped(value))
    text = print_kernel(kernel)
    assert text.count("\n") < 110
    assert print_kernel(parse_kernel(text)) == text
    x = np.linspace(-1, 1, 8, dtype=np.float32)
    y = interpret_kernel(parse_kernel(text), {"x": x})["y"]
    np.testing.assert_array_equal(y, x * np.float32(2) ** 100)


def test_long_expressions_are_cut_into_lines() -> None:
    value: object = Load(X, (A.symbol,))
    for _ in range(40):
        value = Apply("exp", (value,), FLOAT32)  # type: ignore[arg-type]
    text = print_kernel(mapped(value))
    assert max(map(len, text.splitlines())) < 100
    assert print_kernel(parse_kernel(text)) == text


def test_names_of_values_stay_clear_of_names_in_use() -> None:
    v0 = Buffer("v0", TensorType(FLOAT32, (8,)))
    twice = Apply("exp", (Load(v0, (A.symbol,)),), FLOAT32)
    text = print_kernel(mapped(Apply("mul", (twice, twice), FLOAT32), inputs=(v0,)))
    assert "v1 = exp(v0[a])" in text
    assert print_kernel(parse_kernel(text)) == text


@pytest.mark.parametrize(("value", "dtype", "text"), [
    (0.1, FLOAT32, "0.1"), (-0.0, FLOAT32, "-0.0"), (float("inf"), FLOAT32, "f32(inf)"),
    (1e30, FLOAT32, "1e+30"),
    (float("-inf"), FLOAT64, "f64(-inf)"), (float("nan"), FLOAT16, "f16(nan)"), (2.0, BFLOAT16, "bf16(2.0)"),
    (-3, INT64, "i64(-3)"), (255, UINT8, "u8(255)"), (True, BOOL, "True"), (0, BOOL, "False")])
def test_literals(value: float, dtype: DType, text: str) -> None:
    assert spell(Const(value, dtype)) == text
    back = Scope().scalar(text)
    assert isinstance(back, Const) and back.dtype is dtype
    np.testing.assert_array_equal(np.array(back.value, dtype.numpy), np.array(value, dtype.numpy))
    assert np.signbit(float(back.value)) == np.signbit(float(value)) or value != value


def test_grouping_is_kept() -> None:
    x = Load(X, (A.symbol,))
    one = Const(1.0, FLOAT32)
    sub = Apply("sub", (x, Apply("sub", (one, x), FLOAT32)), FLOAT32)
    assert spell(sub) == "x[a] - (1.0 - x[a])"
    assert spell(Apply("sub", (Apply("sub", (x, one), FLOAT32), x), FLOAT32)) == "x[a] - 1.0 - x[a]"
    square = Apply("mul", (x, x), FLOAT32)
    assert spell(Apply("div", (sub, square), FLOAT32)) == "(x[a] - (1.0 - x[a])) / (x[a] * x[a])"
    equal = Apply("eq", (Apply("lt", (x, one), BOOL), Const(True, BOOL)), BOOL)
    assert spell(equal) == "(x[a] < 1.0) == True"
    assert spell(Index(A.symbol * 2, INT32)) == "index(2*a, i32)"


@pytest.mark.parametrize(("broken", "says"), [
    ("z[a0] = x[a0]", "z is not a buffer of the kernel"),
    ("y[b] = x[a0]", "b in 'b' is neither an axis in scope nor a size"),
    ("y[a0] = cosine(x[a0])", "there is no op cosine"),
    ("y[a0] = x[a0] + i32(1)", "one dtype"),
    ("y[a0] = x[a0] + 1", "write i64(1)"),
    ("y[a0] = m", "m is not a result or expression named before"),
    ("y[a0] = x[a0] +", "is not an expression"),
    ("y[a0] = x[a0] @ x[a0]", "is not an expression of a kernel"),
])
def test_text_that_is_no_kernel(broken: str, says: str) -> None:
    text = "kernel k(x: f32[8]) -> (y: f32[8]) {\n  t0: f32 = map over a0 in 8:\n    %s\n}"
    parse_kernel(text % "y[a0] = x[a0]")
    with pytest.raises(ParseError) as caught:
        parse_kernel(text % broken)
    assert says in str(caught.value) and broken in str(caught.value)


# --- the interpreter

def test_interpreter_refuses_what_does_not_fit() -> None:
    kernel = parse_kernel("kernel k(x: f32[N]) -> (y: f32[N]) where N in 1.. {\n"
                          "  t0: f32 = map over a in N:\n    y[a] = x[a]\n}")
    with pytest.raises(SignatureError, match="expected float32, got float64"):
        interpret_kernel(kernel, {"x": np.zeros(3)}, {"N": 3})
    with pytest.raises(ShapeError, match=r"expected shape \(4,\), got \(3,\)"):
        interpret_kernel(kernel, {"x": np.zeros(3, np.float32)}, {"N": 4})


@pytest.mark.parametrize("index", [-1, 5])
def test_interpreter_reads_nothing_outside(index: int) -> None:
    kernel = parse_kernel("kernel k(x: f32[5], i: i64[1]) -> (y: f32[1]) {\n"
                          "  for s in 1:\n    t0: f32 = map:\n      y[s] = x[i[s]]\n}")
    with pytest.raises(IndexError, match=f"index {index} is out of range for a size of 5"):
        interpret_kernel(kernel, {"x": np.zeros(5, np.float32), "i": np.array([index])})


def test_what_nobody_writes_shows() -> None:
    kernel = parse_kernel("kernel k(x: f32[5]) -> (y: f32[5]) {\n"
                          "  t0: f32 = map over a in 4:\n    y[a] = x[a]\n}")
    y = interpret_kernel(kernel, {"x": np.zeros(5, np.float32)})["y"]
    assert np.isnan(y[4]) and not y[:4].any()


@pytest.mark.parametrize("dtype", [BOOL, INT8, UINT8, INT64, FLOAT16, FLOAT64], ids=str)
@pytest.mark.parametrize("combine", ["add", "mul", "maximum", "minimum"])
def test_identities(combine: str, dtype: DType) -> None:
    ufunc = {"add": np.add, "mul": np.multiply, "maximum": np.maximum, "minimum": np.minimum}[combine]
    values = np.array([0, 1, 77], dtype.numpy)
    np.testing.assert_array_equal(ufunc(values, np.array(identity(combine, dtype), dtype.numpy)), values)


def test_order_is_stable_both_ways_and_nan_is_largest() -> None:
    keys = np.array([1, np.nan, 0, 1, -0.0, np.nan, np.inf], np.float32)
    assert stable_order(keys, descending=False).tolist() == [2, 4, 0, 3, 6, 1, 5]
    assert stable_order(keys, descending=True).tolist() == [1, 5, 6, 0, 3, 2, 4]


def test_symbols_are_the_sizes_that_are_no_axes() -> None:
    kernel = parse_kernel(next(e.text for e in EXAMPLES if e.name == "tail"))
    assert kernel.symbols == ("N",)
