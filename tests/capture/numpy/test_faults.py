"""What NumPy tells of integers divided by 0, and of quotients that do not fit: the same here, at every call.

The oracle is NumPy in this process: the same warnings, in the same order, from the same lines; the same for
each way that np.errstate can be set.
"""

from __future__ import annotations

import io
import operator
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import planish
from planish.capture.numpy import faults
from planish.ir import parse_graph, print_graph
from planish.ops.samples import PARALLEL
from tests.capture.numpy.conftest import assert_same

DTYPES = [np.dtype(c) for c in "?bhilqBHILQ"]
RNG = np.random.default_rng()


def told(function: Callable[..., Any], *args: Any) -> tuple[Any, list[tuple[Any, ...]]]:
    """Result and warnings: text, category, file and line."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        result = function(*args)
    return result, [(str(w.message), w.category, w.filename, w.lineno) for w in seen]


def agree(function: Callable[..., Any], *args: Any, strategy: str = "native") -> list[str]:
    """The texts of the warnings, which are NumPy's at the first call and at the second."""
    expected, warned = told(function, *args)
    jitted = planish.jit(function, strategy=strategy)
    for _ in range(2):
        got, ours = told(jitted, *args)
        assert_same(got, expected)
        assert ours == warned
    return [text for text, *_ in warned]


def numbers(dtype: np.dtype, shape: Any) -> np.ndarray:
    """Random ones, none of them 0, -1 or the least."""
    return RNG.integers(1, 2 if dtype.kind == "b" else 100, shape).astype(dtype)


def every_division(a: Any, b: Any) -> Any:
    return np.floor_divide(a, b), np.remainder(a, b), np.fmod(a, b), np.divmod(a, b), a // b, a % b


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype(dtype: np.dtype, strategy: str) -> None:
    a, b = numbers(dtype, 37), numbers(dtype, 37)
    assert agree(every_division, a, b, strategy=strategy) == []
    b[RNG.integers(37)] = 0
    zero = agree(every_division, a, b, strategy=strategy)
    assert len(zero) == 6 and all(text.startswith("divide by zero encountered in ") for text in zero)
    if dtype.kind == "i":
        b[b == 0] = 1
        a[5], b[5] = np.iinfo(dtype).min, -1
        over = agree(every_division, a, b, strategy=strategy)
        assert over == [f"overflow encountered in {n}" for n in ("floor_divide", "divmod", "floor_divide")]


@pytest.mark.parametrize("dtype", [d for d in DTYPES if d.char not in "qQ"], ids=str)
def test_scalars(dtype: np.dtype, strategy: str) -> None:
    """NumPy says "scalar" where Python's operator meets scalars; and 0-d arrays are none."""
    one, zero = dtype.type(1), dtype.type(0)
    for x, y in ((one, zero), (1, zero), (one, 0), (np.array(one), zero), (np.array(one), np.array(zero))):
        for function in (operator.floordiv, operator.mod, divmod, np.floor_divide, np.divmod, np.fmod):
            assert agree(lambda a, b, f=function: f(a, b), x, y, strategy=strategy)


@pytest.mark.parametrize("size", [1, 128, 1013, PARALLEL])
@pytest.mark.parametrize("place", ["first", "last", "nowhere"])
def test_sizes(size: int, place: str) -> None:
    a, b = numbers(np.dtype("i4"), size), numbers(np.dtype("i4"), size)
    if place != "nowhere":
        b[0 if place == "first" else -1] = 0
        a[0 if place == "first" else -1] = 5
    assert len(agree(lambda a, b: a // b, a, b)) == (place != "nowhere")


def test_shapes(strategy: str) -> None:
    a = numbers(np.dtype("i8"), (3, 4))
    row = np.array([1, 0, 2, 0])
    divide = lambda a, b: a // b  # noqa: E731
    assert len(agree(divide, a, row, strategy=strategy)) == 1
    assert len(agree(divide, row[:, None], row, strategy=strategy)) == 1
    assert len(agree(divide, a.T, row[1:], strategy=strategy)) == 1
    assert agree(divide, a[:0], row, strategy=strategy) == []
    assert agree(divide, a[:, :0], np.zeros((3, 0), int), strategy=strategy) == []
    assert len(agree(lambda a, b: np.floor_divide.outer(a, b), row, row, strategy=strategy)) == 1


def test_constants(strategy: str) -> None:
    a = numbers(np.dtype("i4"), 19)
    a[3] = np.iinfo(np.int32).min
    assert agree(lambda a: (a // 7, a % 7, a // np.int32(3)), a, strategy=strategy) == []
    assert len(agree(lambda a: (a // 0, a % 0), a, strategy=strategy)) == 2
    assert len(agree(lambda a: (a // -1, a % -1), a, strategy=strategy)) == 1
    assert len(agree(lambda a: a + np.zeros(19, np.int32) // 0, a, strategy=strategy)) == 1
    assert not planish.jit(lambda a: a // 7).trace(a).captured.faults


def test_where_out_and_in_place(strategy: str) -> None:
    a, b = numbers(np.dtype("i4"), 9), numbers(np.dtype("i4"), 9)
    b[4] = 0

    def masked(a: Any, b: Any, mask: Any) -> Any:
        return np.floor_divide(a, b, where=mask, out=np.zeros_like(a))

    assert agree(masked, a, b, b != 0, strategy=strategy) == []
    assert len(agree(masked, a, b, b == 0, strategy=strategy)) == 1

    def in_place(a: Any, b: Any) -> Any:
        c = a * 2
        c //= b
        return c.sum() // c[4]

    assert len(agree(in_place, a, b, strategy=strategy)) == 2


def test_floats_and_widened_operands(strategy: str) -> None:
    """The dtype of the loop decides: a float one has no fault of integers."""
    a, b = numbers(np.dtype("i1"), 9), np.zeros(9, np.int64)
    assert len(agree(lambda a, b: a // b, a, b, strategy=strategy)) == 1
    with np.errstate(all="ignore"):
        assert agree(lambda a, b: a // b, a, np.zeros(9), strategy=strategy) == []


def test_lines_are_the_users(strategy: str) -> None:
    def two_lines(a: Any, b: Any) -> Any:
        first = a // b
        second = a % b
        return first, second

    _, warned = told(planish.jit(two_lines, strategy=strategy), np.array([1]), np.array([0]))
    start = two_lines.__code__.co_firstlineno
    assert [(w[2], w[3]) for w in warned] == [(__file__, start + 1), (__file__, start + 2)]


def test_a_warning_is_shown_once_by_default() -> None:
    namespace: dict[str, Any] = {"__name__": "user"}
    exec(compile("def f(a, b):\n    return a // b\n", "user.py", "exec"), namespace)
    jitted = planish.jit(namespace["f"], strategy="library")
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("default")
        for _ in range(3):
            jitted(np.array([1]), np.array([0]))
    assert len(seen) == 1 and seen[0].filename == "user.py"


BY_ZERO = (np.array([1, 2]), np.array([1, 0]))


def test_errstate_when_it_is_called(strategy: str, capfd: pytest.CaptureFixture[str]) -> None:
    function = lambda a, b: a // b  # noqa: E731
    jitted = planish.jit(function, strategy=strategy)
    jitted(BY_ZERO[0], BY_ZERO[0])
    with np.errstate(divide="ignore"):
        assert told(jitted, *BY_ZERO)[1] == []
    for run in (function, jitted):
        with np.errstate(divide="raise"), pytest.raises(
            FloatingPointError, match=r"^divide by zero encountered in floor_divide$"
        ):
            run(*BY_ZERO)
    calls: list[Any] = []
    logs = io.StringIO()
    printed = []
    for run in (function, jitted):
        with np.errstate(divide="call", call=lambda *seen: calls.append(seen)):
            assert told(run, *BY_ZERO)[1] == []
        with np.errstate(divide="log", call=logs):
            run(*BY_ZERO)
        with np.errstate(divide="print"):
            run(*BY_ZERO)
        printed.append(capfd.readouterr())
    assert len(calls) == 2 and calls[0] == calls[1]
    first, second = logs.getvalue().splitlines()
    assert first == second and "divide by zero" in first
    assert printed[0] == printed[1] and "divide by zero" in printed[0].out + printed[0].err


def test_errstate_that_the_function_sets(strategy: str) -> None:
    def quiet(a: Any, b: Any) -> Any:
        with np.errstate(divide="ignore"):
            first = a // b
        return first, a % b

    assert agree(quiet, *BY_ZERO, strategy=strategy) == ["divide by zero encountered in remainder"]


def test_warnings_made_errors(strategy: str) -> None:
    jitted = planish.jit(lambda a, b: a // b, strategy=strategy)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            with pytest.raises(RuntimeWarning, match="divide by zero"):
                jitted(*BY_ZERO)


@pytest.mark.parametrize("apply", [operator.floordiv, operator.mod, divmod, operator.truediv])
@pytest.mark.parametrize("numbers", [(3, 0), (3.0, 0), (3, 0.0)])
def test_python_numbers_raise(apply: Callable[..., Any], numbers: tuple[Any, Any], strategy: str) -> None:
    with pytest.raises(ZeroDivisionError) as expected:
        apply(*numbers)
    jitted = planish.jit(lambda a, b: apply(a, b), strategy=strategy)
    with pytest.raises(ZeroDivisionError) as ours:
        jitted(*numbers)
    assert str(ours.value) == str(expected.value)
    assert jitted(numbers[0], type(numbers[1])(2)) == apply(numbers[0], 2)
    with pytest.raises(ZeroDivisionError):
        planish.jit(lambda a: apply(a, numbers[1]), strategy=strategy)(numbers[0])


def test_graphs_show_the_results_alone() -> None:
    """What tells of a fault is an output of what runs; a graph to look at has the function's own, and both
    are read back from their text."""
    a = np.arange(6)
    traced = planish.jit(lambda a, b: a // b).trace(a, a)
    assert len(traced.graph.outputs) == 1 and len(traced.captured.graph.outputs) == 3
    for graph in (traced.graph, traced.captured.graph):
        assert parse_graph(print_graph(graph)) == graph
    assert not planish.jit(lambda a, b: a * b).trace(a, a).captured.faults


def test_the_table_is_numpys() -> None:
    """Of the functions of two integers, those in the table are the ones that NumPy tells of."""
    found = {}
    for name, function in vars(np).items():
        if not isinstance(function, np.ufunc) or (function.nin, function.signature) != (2, None):
            continue
        try:
            results, zero = told(function, np.array([1], np.int32), np.array([0], np.int32))
            _, over = told(function, np.array([-(2**31)], np.int32), np.array([-1], np.int32))
        except (TypeError, ValueError):
            continue
        if all(r.dtype.kind in "iu" for r in (results if isinstance(results, tuple) else (results,))):
            kinds = ("divide",) * bool(zero) + ("over",) * bool(over)
            found.update({function: kinds} if kinds else {})
        assert name
    assert found == faults.KINDS
