"""Dtypes that are only stored: casts of every bit pattern and of dense values, by ml_dtypes; movement."""
from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from planish.compiler import compile_graph
from planish.errors import TypeRuleError
from planish.ir import Graph, constant, input_node, interpret, parse_graph, print_graph
from planish.ops.convert import between, converted
from planish.ops.rules import ops
from planish.ops.samples import random_array, special_values
from planish.rewrite.rules.cast import holds
from planish.types import BOOL, DTYPES, FLOAT32, STORAGE, DType, TensorType, dtype_of

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NaN and overflow are the subject


def casts(x: np.ndarray, targets: Sequence[DType]) -> list[np.ndarray]:
    node = input_node("x", TensorType(dtype_of(x), x.shape))
    return list(compile_graph(Graph((node,), tuple(ops.cast(node, dtype=t) for t in targets)))(x))


def by_ml_dtypes(x: np.ndarray, to: DType) -> np.ndarray:
    """Its own conversion; between two of its dtypes that it does not convert, by way of float32."""
    if to is BOOL:
        return x.astype(np.float32) != 0
    try:
        return x.astype(to.numpy)
    except TypeError:
        return x.astype(np.float32).astype(to.numpy)


def differ(got: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Elementwise: other bits; one NaN is as good as another."""
    assert got.dtype == expected.dtype
    bits = np.dtype(f"u{got.dtype.itemsize}")
    other = got.view(bits) != expected.view(bits)
    return other & ~(np.isnan(got) & np.isnan(expected)) if dtype_of(got).is_float else other


@pytest.mark.parametrize("dtype", STORAGE, ids=str)
def test_every_bit_pattern_as_every_dtype(dtype: DType) -> None:
    x = np.tile(special_values(dtype), 3)[:-1]  # whole vectors and a tail
    targets = [t for t in (*DTYPES, *STORAGE) if t is not dtype]
    wide = x.astype(np.float32)
    for to, got in zip(targets, casts(x, targets)):
        wrong = differ(got, by_ml_dtypes(x, to))
        if dtype.is_float and to.is_integer:  # elsewhere the value is not defined
            wrong &= (wide > -128) & (wide < 128) & ((wide >= 0) | (to.kind == "int"))
        assert not wrong.any(), f"to {to}: {x[wrong][:4]} gave {got[wrong][:4]}"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_dense_values_as_every_dtype_for_storage(dtype: DType) -> None:
    rng = np.random.default_rng()
    bits = rng.integers(0, 256, 20_000 * dtype.itemsize, np.uint8)
    parts = [special_values(dtype), bits.view(dtype.numpy) if dtype is not BOOL else bits > 127]
    if dtype.is_float:
        parts += [between(rng, dtype, to) for to in STORAGE if to.is_float]
        parts += [(rng.normal(size=20_000) * 10.0 ** rng.integers(-7, 7, 20_000)).astype(dtype.numpy)]
    x = np.concatenate(parts)
    near = np.abs(x.astype(np.float64)) < 2e9 if dtype.is_float else np.ones(x.size, bool)
    for to, got in zip(STORAGE, casts(x, STORAGE)):
        wrong = differ(got, by_ml_dtypes(x, to)) & (near | to.is_float)
        assert not wrong.any(), f"to {to}: {x[wrong][:4]} gave {got[wrong][:4]}"


def test_bits_beyond_the_value_are_not_looked_at() -> None:
    x = np.array([0x3F, 0xC9, 0x08, 0xF7], np.uint8)
    for name, expected in (("int4", [-1, -7, -8, 7]), ("uint4", [15, 9, 8, 7]), ("int2", [-1, 1, 0, -1])):
        assert casts(x.view(dtype_of(name).numpy), [FLOAT32])[0].tolist() == expected


@pytest.mark.parametrize("dtype", STORAGE, ids=str)
def test_movement(dtype: DType) -> None:
    rng = np.random.default_rng()
    x, y = (input_node(n, TensorType(dtype, (5, 37))) for n in "xy")
    index, mask = constant(np.array([3, -1, 0, 3])), input_node("mask", TensorType(BOOL, (5, 1)))
    weights = constant(random_array(rng, dtype, (2, 37)))
    one = constant(special_values(dtype)[-2])
    outputs = (ops.select(mask, x, y), ops.concat(x, weights, y, axis=0), ops.transpose(x, axes=(1, 0)),
               ops.pad(x, one, low=(1, 0), high=(0, 3)), ops.take(x, index, axis=0),
               ops.slice(x, starts=(1, 2), stops=(4, 36), steps=(1, 3)), ops.reverse(x, axes=(1,)),
               ops.reshape(ops.broadcast_to(ops.select(mask, x, one), shape=(3, 5, 37)), shape=(15, 37)),
               ops.scatter_nd(x, ops.reshape(index, shape=(4, 1)), ops.take(y, index, axis=0)), weights)
    graph = Graph((x, y, mask), outputs)
    arrays = [random_array(rng, t, n.shape) for n, t in ((x, dtype), (y, dtype), (mask, BOOL))]
    for got, expected in zip(compile_graph(graph)(*arrays), interpret(graph, arrays), strict=True):
        assert got.dtype == expected.dtype and got.shape == expected.shape
        assert not differ(got, np.ascontiguousarray(expected)).any()


@pytest.mark.parametrize("dtype", STORAGE, ids=str)
def test_text_of_constants(dtype: DType) -> None:
    values = special_values(dtype)
    inside = values[np.isfinite(values)] if dtype.is_float else values
    graph = Graph((), (constant(np.random.default_rng().choice(inside, 9)),), name="g")
    text = print_graph(graph)
    assert f": {dtype.short}[9]" in text
    assert parse_graph(text).outputs == graph.outputs


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "int4"])
def test_arithmetic_refuses(dtype: str) -> None:
    x = input_node("x", TensorType(dtype_of(dtype), (4, 4)))
    for refused in (lambda: x + x, lambda: -x, lambda: ops.lt(x, x), lambda: ops.reduce_max(x, axes=(0,)),
                    lambda: ops.sort(x, axis=0), lambda: ops.matmul(x, x), lambda: ops.relu(x)):
        with pytest.raises(TypeRuleError, match="is for storage only: cast it"):
            refused()


def test_a_scatter_that_adds_refuses() -> None:
    x, index = input_node("x", TensorType(dtype_of("uint4"), (4,))), constant(np.array([[1]]))
    with pytest.raises(TypeRuleError, match="u4 is for storage only"):
        ops.scatter_nd(x, index, ops.slice(x, starts=(0,), stops=(1,), steps=(1,)), reduction="add")


@pytest.mark.parametrize("narrow", STORAGE, ids=str)
def test_what_rules_believe_a_dtype_holds(narrow: DType) -> None:
    """Every value comes back from a dtype said to hold it; none for storage is said to hold another."""
    values = special_values(narrow)
    for wide in (*DTYPES, *STORAGE):
        if wide is narrow or not holds(wide, narrow):
            continue
        assert not wide.is_storage
        back = converted(converted(values, wide), narrow)
        assert not differ(back, values).any(), f"{wide} does not hold {narrow}"


def test_the_reference_in_float64_rounds_where_the_program_does() -> None:
    """A cast to a dtype for storage is meant to round: it is no error of the program."""
    x = input_node("x", TensorType(FLOAT32, (300,)))
    narrow = ops.cast(x * 3.0, dtype=dtype_of("float8_e4m3fn"))
    graph = Graph((x,), (ops.cast(narrow, dtype=FLOAT32) * 0.1, narrow))
    array = np.random.default_rng().normal(size=300).astype(np.float32)
    wide, kept = interpret(graph, [array], precision="float64")
    assert wide.dtype == np.float64 and kept.dtype == dtype_of("float8_e4m3fn").numpy
    np.testing.assert_allclose(compile_graph(graph)(array)[0], wide, rtol=1e-6)
