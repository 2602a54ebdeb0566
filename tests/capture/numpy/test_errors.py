"""What can't be compiled says so: the user's line, what is wrong, what to write instead. Messages are
goldens."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import planish
from planish.errors import CaptureError, CaptureWarning

X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)
TABLE = np.ones((5, 4), np.float32)
KEPT: list[Any] = []


def branch(x: Any) -> Any:
    if x.sum() > 0:
        return x
    return -x


def loop(x: Any) -> Any:
    while np.max(x) > 1:
        x = x / 2
    return x


def to_float(x: Any) -> Any:
    return float(x.mean()) * 2


def item(x: Any) -> Any:
    return x.sum().item()


def as_range(x: Any) -> Any:
    return [x for _ in range(np.argmax(x))]


def masked(x: Any) -> Any:
    return x[x > 0]


def places(x: Any) -> Any:
    return np.where(x > 0)


def nonzero(x: Any) -> Any:
    return np.nonzero(x)


def inverse(x: Any) -> Any:
    return np.linalg.inv(x[:, :3])


def fft(x: Any) -> Any:
    return np.fft.fft(x)


def plain_index(x: Any) -> Any:
    return TABLE[x.astype(np.int32)]


def scalar_type(x: Any) -> Any:
    return np.float64(x)


def complex_result(x: Any) -> Any:
    return x * 1j


def keyword(x: Any) -> Any:
    return np.linalg.norm(x, ord="nuc")


def method(x: Any) -> Any:
    return x.tobytes()


def mask_values(x: Any) -> Any:
    y = x.copy()
    y[x > 0] = np.arange(6)
    return y


def leaked(x: Any) -> Any:
    KEPT.append(x + 1)
    return x


GOLDENS: dict[Callable[..., Any], str] = {
    branch: "its truth (in if, while, and, or, not) is needed, but the value Tracer(bool[]) is known only "
    "when the compiled function "
    "runs. Write np.where(condition, a, b) instead of `if`; or, if the condition depends only on an "
    "argument, pass that argument "
    "as static (static_argnums, static_argnames)",
    loop: "its truth (in if, while, and, or, not) is needed, but the value Tracer(bool[]) is known only "
    "when the compiled function "
    "runs. Write np.where(condition, a, b) instead of `if`; or, if the condition depends only on an "
    "argument, pass that argument "
    "as static (static_argnums, static_argnames)",
    to_float: "float() of it is needed, but the value Tracer(f32[]) is known only when the compiled "
    "function runs. Keep it an array "
    "(np.* functions take it), or compute it outside and pass it as a static argument",
    item: "its item() is needed, but the value Tracer(f32[]) is known only when the compiled function runs. "
    "Keep it an array (np.* "
    "functions take it), or compute it outside and pass it as a static argument",
    as_range: "it as a Python integer (a size, an axis, a range, an index of a list) is needed, but the "
    "value Tracer(i64[]) is known only "
    "when the compiled function runs. Pass the number it comes from as a static argument "
    "(static_argnums, static_argnames), or "
    "use np.take, np.where",
    masked: "indexing by a computed mask gives a shape that is known only when the function runs. Write "
    "np.where(mask, x, other), or a "
    "reduction with where=mask",
    places: "np.where(condition) alone can't be compiled yet; the number of places is known only when the "
    "function runs; write "
    "np.where(condition, x, y)",
    nonzero: "np.nonzero can't be compiled yet; compute it outside and pass the result as an argument",
    inverse: "np.linalg.inv can't be compiled yet; compute it outside and pass the result as an argument",
    fft: "np.fft.fft can't be compiled yet; compute it outside and pass the result as an argument",
    plain_index: "a plain NumPy array is needed, but the value Tracer(i32[3, 4]) is known only when the "
    "compiled function runs. The function "
    "used does not let itself be traced: to index a plain array by a traced one write "
    "np.take(array, index, axis=0), to convert "
    "write x.astype(dtype), to write into an array return a new one",
    scalar_type: "a plain NumPy array is needed, but the value Tracer(f32[3, 4]) is known only when the "
    "compiled function runs. The function "
    "used does not let itself be traced: to index a plain array by a traced one write "
    "np.take(array, index, axis=0), to convert "
    "write x.astype(dtype), to write into an array return a new one",
    complex_result: "complex can't be used as an array in a compiled function",
    keyword: "np.linalg.norm with ord='nuc' of matrices can't be compiled yet; compute it outside and pass "
    "the result as an argument",
    method: "ndarray.tobytes has no meaning in a compiled function yet; compute it outside and pass the "
    "result as an argument",
    mask_values: "storing an array at a computed mask needs to know how many places it has. Write x = "
    "np.where(mask, other, x) with `other` "
    "of x's shape",
}


@pytest.mark.parametrize("function", GOLDENS, ids=lambda f: f.__name__)
def test_message(function: Callable[..., Any]) -> None:
    with pytest.raises(CaptureError) as found:
        planish.jit(function, strategy="library")(X)
    file, line, message = re.match(r"(.*?):(\d+): (.*)", str(found.value), re.DOTALL).groups()  # type: ignore[union-attr]
    assert file == __file__ and message == GOLDENS[function]
    first = function.__code__.co_firstlineno
    assert first < int(line) <= first + 3, "the line is in the function"


def test_leaked_value() -> None:
    with pytest.warns(CaptureWarning, match=r"leaked \(.*test_errors.py:\d+\) changed KEPT"):
        planish.jit(leaked, strategy="library")(X)
    with pytest.raises(
        CaptureError, match=r"test_errors.py:\d+: a traced value is used after its trace ended"
    ):
        KEPT[0] + 1
    with pytest.raises(CaptureError, match="a value of another trace is used here"):
        planish.jit(lambda x: x + KEPT[0], strategy="library")(X)


def test_wrong_arguments() -> None:
    f = planish.jit(lambda x: x + 1, strategy="library")
    with pytest.raises(TypeError, match="dtype complex128 is not supported"):
        f(np.ones(3, complex))
    with pytest.raises(TypeError, match="dtype object is not supported"):
        f(np.array([None]))
    with pytest.raises(TypeError, match="too many positional arguments"):
        f(X, X)
    with pytest.raises(TypeError):
        f(object())
    with pytest.raises(TypeError, match="MaskedArray"):
        f(np.ma.masked_array([1, 2], [True, False]))


def test_run_time_checks_raise_as_numpy(strategy: str) -> None:
    f = planish.jit(lambda x, i: x[i], strategy=strategy)
    np.testing.assert_array_equal(f(X, np.array([-3, 2])), X[[-3, 2]])
    for bad in (3, -4):
        with pytest.raises(IndexError, match="out of bounds for axis 0 with size 3"):
            f(X, np.array([0, bad]))
