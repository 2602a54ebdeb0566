"""The promises of docs/semantics.md about values, held to NumPy in this process, line by line.

Those about warnings are in test_faults.py, about memory in test_memory.py, about guards in test_jit.py and
test_outside.py.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from itertools import product
from typing import Any

import numpy as np
import pytest

import planish
from planish.errors import CaptureError
from planish.ops.samples import PARALLEL
from tests.capture.numpy.conftest import outcome

RNG = np.random.default_rng()
SPECIAL = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.5, 1e-40, -3e-42, 3e38, -3e38]
SIZES = (1, 1013)


def special(size: int, dtype: Any = np.float32) -> np.ndarray:
    """Every second one is special, in random places."""
    x = RNG.normal(size=size).astype(dtype)
    with np.errstate(over="ignore"):
        return np.where(RNG.random(size) < 0.5, RNG.choice(np.array(SPECIAL), size).astype(dtype), x)


def bits(x: Any) -> np.ndarray:
    """What has to be equal: the bits, but for those of NaN."""
    x = np.asarray(x)
    if x.dtype.kind != "f":
        return x
    return np.where(np.isnan(x), -1, np.ascontiguousarray(x).view(f"i{x.dtype.itemsize}"))


def same_bits(function: Callable[..., Any], *args: Any, **options: Any) -> None:
    with np.errstate(all="ignore"):
        expected, got = function(*args), planish.jit(function, **options)(*args)
    expected, got = (r if isinstance(r, tuple) else (r,) for r in (expected, got))
    for i, (g, e) in enumerate(zip(got, expected, strict=True)):
        assert np.asarray(g).dtype == np.asarray(e).dtype
        np.testing.assert_array_equal(bits(g), bits(e), err_msg=f"result {i}")


# --- values


def looks_foldable(x: Any, y: Any) -> Any:
    c = np.float32(-2)
    return (x * 0, x - x, x / x, x + 0, x - 0, 0 - x, x + y - y, np.sqrt(x * x), np.maximum(c * x, c * y),
            (x / y) * y, -(x - y), 1 / (1 / x), x * 0 + y)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("numerics", ["strict", "default"])
def test_nothing_is_folded_that_is_no_identity(numerics: str, size: int, dtype: Any) -> None:
    same_bits(looks_foldable, special(size, dtype), special(size, dtype), numerics=numerics)


@pytest.mark.parametrize("size", SIZES)
def test_nan_and_infinity_are_honoured_in_fast(size: int) -> None:
    x, y = special(size), special(size)
    with np.errstate(all="ignore"):
        expected, got = looks_foldable(x, y), planish.jit(looks_foldable, numerics="fast")(x, y)
    for g, e in zip(got[:6], expected[:6], strict=True):
        np.testing.assert_array_equal(np.isnan(g), np.isnan(e))
        np.testing.assert_array_equal(np.isinf(g), np.isinf(e))


def test_a_softmax_sums_to_what_it_sums_to() -> None:
    def total(x: Any) -> Any:
        e = np.exp(x - x.max(-1, keepdims=True))
        return (e / e.sum(-1, keepdims=True)).sum(-1)

    x = RNG.normal(size=(5, 37)).astype(np.float32)
    x[1, 3], x[2] = np.nan, -np.inf
    with np.errstate(all="ignore"):
        expected, got = total(x), planish.jit(total)(x)
    np.testing.assert_array_equal(np.isnan(got), [False, True, True, False, False])
    np.testing.assert_allclose(got, expected, rtol=1e-6)


def selects(x: Any, y: Any) -> Any:
    return (np.maximum(x, y), np.minimum(x, y), np.maximum(y, x), np.clip(x, -1, 1), np.clip(x, y, 1),
            np.maximum(x, 0), np.minimum(0, x), np.fmax(x, y), np.fmin(x, y), np.argmax(x), np.argmin(x),
            np.max(x), np.min(x), np.sort(x), np.argsort(x, kind="stable"), np.sign(x), np.where(x > y, x, y))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("size", [1, 8, 21])
def test_nan_in_every_lane(size: int, dtype: Any) -> None:
    jitted = planish.jit(selects)
    for lane in range(size):
        x, y = (RNG.normal(size=size).astype(dtype) for _ in range(2))
        for operands in ((np.array(x), y), (x, np.array(y)), (np.array(x), np.array(y))):
            operands[0][lane] = operands[1][RNG.integers(size)] = np.nan
            for i, (g, e) in enumerate(zip(jitted(*operands), selects(*operands), strict=True)):
                np.testing.assert_array_equal(g, e, err_msg=f"result {i}, lane {lane}")


@pytest.mark.parametrize("size", SIZES)
def test_ties_go_to_the_first(size: int) -> None:
    x = RNG.integers(-1, 2, size).astype(np.float32)
    x[x == 0] = -0.0
    x[::3] = np.abs(x[::3])
    same_bits(lambda x: (np.argmax(x), np.argmin(x), np.argsort(x, kind="stable"), np.argmax(x > 0)), x)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rounding_at_and_beside_whole_numbers(size: int, dtype: Any) -> None:
    whole = RNG.integers(-5, 6, size).astype(dtype)
    x = RNG.choice(np.stack([whole, whole + dtype(0.5), np.nextafter(whole, dtype(9)),
                             np.nextafter(whole, dtype(-9))]), axis=0)
    same_bits(lambda x: (np.floor(x), np.ceil(x), np.rint(x), np.trunc(x), x // 1, x % 1, np.round(x)), x)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_denormals_are_numbers(size: int, dtype: Any) -> None:
    x = (RNG.normal(size=size) * np.finfo(dtype).tiny).astype(dtype)
    same_bits(lambda x: (x * dtype(0.5), x + x, x - x / 3, -x, np.sqrt(np.abs(x)), x > 0), x)
    assert np.any(np.multiply(np.finfo(dtype).tiny, dtype(0.5)) > 0)   # the process's state is as it was


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("numerics", ["strict", "default"])
@pytest.mark.parametrize("size", [1, 1013])
def test_narrow_floats_round_after_every_op(size: int, numerics: str, dtype: str) -> None:
    import ml_dtypes

    kind = np.float16 if dtype == "float16" else ml_dtypes.bfloat16
    x, y = (special(size).astype(kind) for _ in range(2))

    def chain(x: Any, y: Any) -> Any:
        return (x * y - x, (x + y) * (x - y), x / y + x, np.maximum(x, y) * y, x * x * x * x, x + y + x + y)

    with np.errstate(all="ignore"):
        expected, got = chain(x, y), planish.jit(chain, numerics=numerics)(x, y)
    for g, e in zip(got, expected, strict=True):
        assert g.dtype == e.dtype == kind
        np.testing.assert_array_equal(g.astype(np.float32), e.astype(np.float32))


def softmax(x: Any) -> Any:
    e = np.exp(x - x.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


REDUCTIONS: dict[str, Callable[..., Any]] = {
    "sum": lambda x: np.sum(x, 1), "mean": lambda x: np.mean(x, 1), "var": lambda x: np.var(x, 1),
    "std": lambda x: np.std(x, 1), "columns": lambda x: np.sum(x, 0), "all": lambda x: np.sum(x),
    "channels": lambda x: np.sum(x.reshape(4, 4, -1), (0, 2)), "cumsum": lambda x: np.cumsum(x, 1),
    "norm": lambda x: np.sqrt((x * x).sum(1)), "softmax": softmax, "product": lambda x: x @ x.T,
    "one row": lambda x: x[0] @ x.T, "of weights": lambda x: x.T[:64] @ x,
}
SHAPES = [((16, 300), 1), ((16, 1500), 0), ((16, 20000), 1)]  # and the mean of the numbers
SAMPLES, MOST_DRAWS = 200, 50                                 # results that are enough, or draws


def errors(function: Callable[..., Any], dtype: Any, shape: Any, offset: float) -> tuple[Any, Any]:
    """NumPy's and ours against float64: the mean of many results of some draws. Half a unit in the last place
    is free to both."""
    jitted = planish.jit(function)
    found: list[list[float]] = []
    wanted = min(MOST_DRAWS, max(6, SAMPLES // np.size(function(np.ones(shape)))))
    while len(found) < wanted:
        x = (RNG.normal(size=shape) + offset).astype(dtype)
        with np.errstate(all="ignore"):
            exact = function(x.astype(np.float64))
            free = np.abs(np.spacing(exact.astype(dtype))).astype(np.float64) / 2
            found.append([np.mean(np.maximum(np.abs(r.astype(np.float64) - exact), free))
                          for r in (function(x), jitted(x))])
    return tuple(np.mean(found, axis=0))


@pytest.mark.parametrize(("shape", "offset"), SHAPES, ids=str)
@pytest.mark.parametrize("name", REDUCTIONS)
def test_errors_are_at_most_twice_numpys(name: str, shape: tuple[int, int], offset: float) -> None:
    numpys, ours = errors(REDUCTIONS[name], np.float32, shape, offset)
    assert ours <= (3 if name == "all" else 2) * numpys   # of one result each the mean is not that certain


@pytest.mark.parametrize("name", [name for name in REDUCTIONS if name != "cumsum"])
def test_narrow_floats_are_accumulated_in_float32(name: str) -> None:
    numpys, ours = errors(REDUCTIONS[name], np.float16, (16, 1500), 0)
    assert ours <= 2 * numpys


# --- integers

TABLE = (np.add, np.subtract, np.multiply, np.floor_divide, np.remainder, np.fmod, np.left_shift,
         np.right_shift,
         np.bitwise_and, np.bitwise_or, np.bitwise_xor, np.maximum, np.minimum, np.less, np.equal)


def integers(dtype: Any, size: int) -> tuple[np.ndarray, np.ndarray]:
    info = np.iinfo(dtype)
    corners = [v for v in (info.min, info.min + 1, -1, 0, 1, 2, 7, 8, 31, 63, 64, info.max - 1, info.max)
               if info.min <= v <= info.max]
    x, y = (RNG.integers(info.min, info.max, size, dtype=dtype, endpoint=True) for _ in range(2))
    both = RNG.permutation(np.array(list(product(corners, corners)), dtype))[:size]
    x[:len(both)], y[:len(both)] = both.T
    return x, y


@pytest.mark.parametrize("size", [128, PARALLEL])
@pytest.mark.parametrize("dtype", ["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"])
def test_integers_are_numpys(dtype: str, size: int) -> None:
    """Zero divisors, the least integer by -1, shifts by any count, wrapping before what follows widens."""
    def table(x: Any, y: Any) -> Any:
        wide = (x + y).astype(np.float64) + (x * y).astype(np.int64)
        return (*(f(x, y) for f in TABLE), -x, abs(x), ~x, x ** (y & 7), x * x + y - x, wide, np.sign(x))

    same_bits(table, *integers(np.dtype(dtype), size))


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("size", SIZES)
def test_floor_division_of_floats_is_numpys(size: int, dtype: str) -> None:
    x, y = special(size, dtype), special(size, dtype)
    x[::3], y[::3] = 1.0, 0.1
    same_bits(lambda x, y: (x // y, x % y, np.fmod(x, y), *np.divmod(x, y)), x, y)


DTYPES = ["?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8"]


@pytest.mark.parametrize("ufunc", [np.add, np.true_divide, np.left_shift, np.less])
def test_promotion_is_numpys(ufunc: np.ufunc) -> None:
    """Of arrays, 0-d arrays, scalars and Python's numbers, in every pair: the dtype, or the error."""
    arrays, flat = [np.ones(2, d) for d in DTYPES], [np.array(1, d) for d in DTYPES]
    others = [*arrays, *flat, *(a[()] for a in flat), True, 1, 1.0]
    for x, y in [*product(arrays, others), *product(flat[::3], others)]:
        expected, _ = outcome(lambda x=x, y=y: ufunc(x, y), ())
        got, _ = outcome(lambda x=x, y=y: planish.make_graph(lambda a: ufunc(a, y))(x).outputs[0], ())
        if isinstance(expected, Exception):
            assert isinstance(got, TypeError), f"{x!r}, {y!r}"
        else:
            assert got.dtype.numpy == expected.dtype, f"{x!r}, {y!r}: {got}"


WITH_DTYPE: dict[str, Callable[..., Any]] = {
    "sum": lambda x, d: np.sum(x, dtype=d), "prod": lambda x, d: np.prod(x, dtype=d),
    "mean": lambda x, d: np.mean(x, dtype=d), "cumsum": lambda x, d: np.cumsum(x, dtype=d),
    "cumprod": lambda x, d: np.cumprod(x, dtype=d), "add": lambda x, d: np.add(x, x, dtype=d),
    "method": lambda x, d: x.sum(0, dtype=d), "astype": lambda x, d: x.astype(d),
    "zeros": lambda x, d: x + np.zeros(3, d), "full_like": lambda x, d: np.full_like(x, 3, dtype=d),
    "ones_like": lambda x, d: np.ones_like(x, dtype=d), "var": lambda x, d: np.var(x, dtype=d),
    "array": lambda x, d: np.array(x, dtype=d), "concatenate": lambda x, d: np.concatenate([x, x], dtype=d),
    "stack": lambda x, d: np.stack([x, x], dtype=d), "arange": lambda x, d: x + np.arange(3, dtype=d),
    "trace": lambda x, d: np.trace(np.outer(x, x), dtype=d),
    "einsum": lambda x, d: np.einsum("i->", x, dtype=d),
}


@pytest.mark.parametrize("name", WITH_DTYPE)
def test_a_dtype_that_is_asked_for_is_given(name: str) -> None:
    for source, wanted in product(["i1", "i4", "f4"], ["i8", "f4", "f8"]):
        x = RNG.integers(1, 100, 3).astype(source)
        expected, _ = outcome(lambda x=x, w=wanted: WITH_DTYPE[name](x, w), ())
        got, _ = outcome(planish.jit(lambda x, w=wanted: WITH_DTYPE[name](x, w), strategy="library"), (x,))
        if isinstance(expected, Exception):
            assert isinstance(got, TypeError), f"{got!r}, NumPy raises {expected!r}"
        elif isinstance(got, CaptureError):
            assert name == "var" and wanted == "i8"      # refused, with what to write instead
        else:
            assert np.asarray(got).dtype == np.asarray(expected).dtype, f"{source} -> {wanted}: {got!r}"
            np.testing.assert_allclose(got, expected, rtol=1e-5)


# --- checks


REFUSED: dict[str, tuple[Callable[..., Any], list[Any]]] = {
    "bool minus": (lambda x: x - x, [np.array([True])]),
    "negated bool": (lambda x: -x, [np.array([True])]),
    "shapes": (lambda x, y: x + y, [np.ones(3), np.ones(4)]),
    "matmul sizes": (lambda x, y: x @ y, [np.ones((2, 3)), np.ones((2, 3))]),
    "matmul scalar": (lambda x, y: x @ y, [np.ones(3), np.array(2.0)]),
    "reshape": (lambda x: x.reshape(2, 2), [np.ones(3)]),
    "axis": (lambda x: x.sum(2), [np.ones(3)]),
    "in place": (lambda x: np.add(x, 0.5, out=x), [np.ones(3, int)]),
    "shift of floats": (lambda x: x << 1, [np.ones(3)]),
    "index": (lambda x: x[3], [np.ones(3)]),
    "index that nothing uses": (lambda x, i: (x[i], x + 1)[1], [np.ones(3), np.array([0, 3])]),
    "index below": (lambda x, i: x[i], [np.ones(3), np.array(-4)]),
    "take": (lambda x, i: np.take(x, i), [np.ones(3), np.array([3])]),
    "write": (lambda x, i: np.add.at(x, i, 1), [np.ones(3), np.array([3])]),
    "concatenate": (lambda x, y: np.concatenate([x, y]), [np.ones((2, 3)), np.ones((2, 4))]),
    "broadcast_to": (lambda x: np.broadcast_to(x, (2, 2)), [np.ones(3)]),
    "negative power": (lambda x, y: x ** y, [np.array([2]), np.array([-1])]),
    "no largest": (lambda x: x.max(), [np.ones(0)]),
    "python integer": (lambda x: x + 300, [np.ones(3, np.uint8)]),
    "split": (lambda x: np.split(x, 2), [np.ones(3)]),
    "repeats": (lambda x: np.repeat(x, -1), [np.ones(3)]),
    "sizes": (lambda x: np.zeros(-1) + x, [np.ones(3)]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_numpy_refuses(name: str, agree: Callable[..., Any]) -> None:
    function, args = REFUSED[name]
    assert isinstance(outcome(function, args)[0], Exception)
    agree(function, *args)


def test_a_check_is_kept_by_every_pass() -> None:
    """In a chain of dead values, in every class of numerics, alone or beside others."""
    def dead(x: Any, i: Any) -> Any:
        reduce(lambda a, _: a[i] * 0 + a, range(3), x)
        return x * 0

    for numerics in ("strict", "default", "fast"):
        jitted = planish.jit(dead, numerics=numerics)
        jitted(np.ones(3), np.array([0, 1, 2]))
        with pytest.raises(IndexError):
            jitted(np.ones(3), np.array([0, 1, 3]))
