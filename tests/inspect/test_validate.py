"""Errors against float64: what is measured, and what counts as right."""
from __future__ import annotations

import numpy as np
import pytest

from planish.inspect.validate import Reference, output_error, validate
from planish.ir.graph import build_graph
from planish.ops import exp, matmul
from planish.types import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, INT32, DType, TensorType

FLOATS = [FLOAT16, BFLOAT16, FLOAT32, FLOAT64]
SPECIAL = [0.0, -0.0, 1.0, -3.5, np.inf, -np.inf, np.nan]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_units_in_the_last_place(dtype: DType) -> None:
    eager = np.array([1.0, 1.0, 3.0, -100.0], dtype.numpy)
    exact = eager.astype(np.float64)
    step = float(np.spacing(eager[2]))
    got = eager.copy()
    got[2] += dtype.numpy.type(step)
    found = output_error("y", got, exact, eager)
    assert found.ulp == 1 and found.absolute == step and found.worst == (2,) and found.is_right
    assert found.relative == step / 100


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_special_values_must_stand_where_they_stand(dtype: DType) -> None:
    eager = np.array(SPECIAL, dtype.numpy)
    exact = eager.astype(np.float64)
    assert output_error("y", eager, exact, eager).is_right
    for i in (2, 4, 5, 6):
        for other in (np.nan, np.inf, -np.inf, 7.0):
            got = eager.copy()
            got[i] = other
            same = np.array_equal(got, eager, equal_nan=True)
            assert output_error("y", got, exact, eager).is_right == same


def test_an_overflow_that_eager_has_too_is_right() -> None:
    eager, exact = np.array([np.inf], np.float32), np.array([1e39])
    assert output_error("y", eager, exact, eager).is_right
    assert not output_error("y", np.array([1.0], np.float32), exact, eager).is_right


def test_twice_the_error_of_eager_is_allowed_and_no_more() -> None:
    exact = np.array([1.0, 1.0])
    eager = np.array([1.0, 1.001], np.float32)
    assert output_error("y", np.array([1.0, 0.9981], np.float32), exact, eager).is_right
    assert not output_error("y", np.array([1.0, 0.9979], np.float32), exact, eager).is_right


def test_integers_must_be_equal_to_a_reference() -> None:
    eager, exact = np.array([1, 2], np.int32), np.array([1, 3], np.int64)
    for got, right in (([1, 2], True), ([1, 3], True), ([1, 4], False)):
        assert output_error("y", np.array(got, np.int32), exact, eager).is_right == right


@pytest.mark.parametrize("got", [np.zeros((2, 1), np.float32), np.zeros(2), np.zeros(3, np.float32)])
def test_another_type_is_a_fault(got: np.ndarray) -> None:
    eager = np.zeros(2, np.float32)
    assert "instead of float32[2]" in output_error("y", got, np.zeros(2), eager).fault


def test_empty_outputs_are_right() -> None:
    eager = np.zeros((0, 3), np.float32)
    found = output_error("y", eager, eager.astype(np.float64), eager)
    assert found.is_right and found.ulp == found.absolute == found.relative == 0


def test_everyone_is_measured_and_who_fails_is_named() -> None:
    graph = build_graph(lambda x: (exp(x), x), TensorType(FLOAT32, (50,)))
    x = np.linspace(-3, 3, 50, dtype=np.float32)

    def broken(x: np.ndarray) -> tuple[np.ndarray, ...]:
        raise OSError("no")

    found = validate(graph, {"good": lambda x: (np.exp(x), x), "bad": lambda x: (np.exp(x) * 1.01, x),
                             "short": lambda x: (x,), "broken": broken}, [x])
    assert [e.is_right for e in found.errors["good"]] == [True, True]
    assert [e.is_right for e in found.errors["bad"]] == [False, True]
    assert found.failures == {"short": "ValueError: 1 outputs instead of 2", "broken": "OSError: no"}
    assert not found.is_right
    assert [e.name for e in found.errors["good"]] == ["output 0", "output 1"]


def test_reference_is_in_float64_and_in_its_own_precision() -> None:
    graph = build_graph(matmul, TensorType(FLOAT32, (3, 400)), TensorType(FLOAT32, (400, 2)))
    rng = np.random.default_rng(2)
    a, b = (rng.standard_normal(s).astype(np.float32) for s in ((3, 400), (400, 2)))
    reference = Reference(graph, [a, b])
    np.testing.assert_allclose(reference.exact[0], a.astype(np.float64) @ b.astype(np.float64), rtol=1e-14)
    assert reference.eager[0].dtype == np.float32
    assert reference.errors(reference.eager)[0].is_right
    with pytest.raises(ValueError, match="2 outputs instead of 1"):
        reference.errors([a, b])


def test_integer_graphs_have_one_reference() -> None:
    graph = build_graph(lambda x: x + x, TensorType(INT32, (4,)))
    x = np.array([1, -2, 2**30, -2**31], np.int32)
    with np.errstate(over="ignore"):
        found = validate(graph, {"numpy": lambda x: (x + x,)}, [x])
    assert found.is_right
