"""The transcendental kernels against a wider format: float32 against float64, float64 against long double."""
from __future__ import annotations

import ctypes
import ctypes.util
import math
from functools import cache

import numpy as np
import pytest

from planish.codegen.llvm.math import DOUBLE, ULP, ULP_FAST

harness = pytest.importorskip("tests.codegen.elementwise_harness")

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NaN and overflow are the subject


def gate(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """x / (1 + 4^-y), 4^-y infinite from where it is in the narrower format that is under test; the kernel of
    float32 goes half a power of two further."""
    is_over = -2 * y > 128.5 if x.dtype == np.float64 else -2 * y >= 1024
    return x / (1 + np.exp2(np.where(is_over, np.inf, -2 * y).astype(x.dtype)))


BINARY = {"pow": np.power, "hypot": np.hypot, "atan2": np.arctan2, "gate": gate}
NUMPY = {f"a{name}": f"arc{name}" for name in ("sin", "cos", "tan", "sinh", "cosh", "tanh")}
LIBRARY = ("erf", "erfc", "lgamma")
PLAIN = {"erf": math.erf, "erfc": math.erfc}  # the C library's in double
DOMAIN = {"exp": (-110, 95), "decay": (-110, 1), "decay2": (-140, 1), "exp2": (-155, 130), "expm1": (-20, 90),
          "sin": (-300, 300), "cos": (-300, 300), "tan": (-300, 300), "asin": (-1, 1), "acos": (-1, 1),
          "atanh": (-1, 1), "sinh": (-90, 90), "cosh": (-90, 90), "tanh": (-10, 10), "erf": (-5, 5),
          "erfc": (-6, 12), "sigmoid": (-105, 105),
          "log": (0, 3), "log2": (0, 3), "log10": (0, 3), "log1p": (-1, 3), "acosh": (1, 5),
          "lgamma": (0, 50), "gate": (-70, 70)}
WIDER = {"exp": 7.5, "decay": 7.5, "exp2": 7.5, "expm1": 7.5, "sinh": 7.8, "cosh": 7.8, "sigmoid": 7,
         "erfc": 2.4, "gate": 7.5}


def reference(op: str, *xs: np.ndarray) -> np.ndarray:
    """`op` in the format of `xs`, which is wider than the one under test."""
    if op in BINARY:
        return BINARY[op](*xs)
    if op in PLAIN and xs[0].dtype == np.float64:
        return np.array([*map(PLAIN[op], xs[0].tolist())])
    if op in LIBRARY:
        return np.array([_library(op)(v) for v in xs[0].astype(np.float64)], xs[0].dtype)
    if op == "decay":
        return np.exp(np.minimum(xs[0], 0))
    if op == "decay2":
        return np.where(xs[0] <= -126.5, 0, np.exp2(np.minimum(xs[0], 0)))
    if op == "sigmoid":
        return 1 / (1 + np.exp(-xs[0]))
    return getattr(np, NUMPY.get(op, op))(*xs)


@cache
def _library(op: str):
    """The C library's long double function, rounded to double by ctypes."""
    function = getattr(ctypes.CDLL(ctypes.util.find_library("m")), op + "l")
    function.restype, function.argtypes = ctypes.c_longdouble, [ctypes.c_longdouble]
    return function


def operands(op: str, dtype: str, n: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Half from the interval where the function does something, half of any magnitude, specials strewn in."""
    stretch = WIDER.get(op, 1) if dtype == "float64" else 1
    low, high = (stretch * v for v in DOMAIN.get(op, (-4, 4)))
    span = 37 if dtype == "float32" else 300
    info = np.finfo(dtype)
    special = np.array([0, 1, 2, 0.5, 3, 1e5, np.inf, info.tiny, info.smallest_subnormal, info.max, info.eps])
    special = np.concatenate([special, -special, [np.nan]])
    xs = []
    for _ in range(2 if op in BINARY else 1):
        x = rng.uniform(low, high, n)
        x[: n // 2] = np.copysign(10 ** rng.uniform(-span - 7, span, n // 2), rng.uniform(-1, 1, n // 2))
        x[rng.permutation(n)[: 40 * special.size]] = np.tile(special, 40)
        xs.append(x.astype(dtype))
    return xs


def error_in_ulp(got: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """The distance in units of the last place of the rounded exact result; inf if just one is finite."""
    info = np.finfo(got.dtype)
    rounded = exact.astype(got.dtype)
    unit = np.maximum(np.spacing(np.abs(rounded)), info.smallest_subnormal)
    error = np.abs(got.astype(exact.dtype) - exact) / unit
    agree = (got == rounded) | (np.isnan(got) & np.isnan(rounded))
    # within a unit of overflow either side of it will do
    border = np.abs(np.abs(exact) - exact.dtype.type(info.max)) <= np.spacing(info.max)
    edge = ~np.isfinite(rounded) | ~np.isfinite(got)
    return np.where(edge, np.where(agree | border, 0.0, np.inf), error).astype(np.float64)


def check(op: str, dtype: str, n: int, bound: float, numerics: str = "default", lanes=harness.LANES) -> float:
    xs = operands(op, dtype, n, np.random.default_rng([len(op), ord(op[0]), n]))
    if op == "lgamma":
        xs = [np.abs(xs[0])]
    got = harness.run(op, (dtype,) * len(xs), dtype, *xs, numerics=numerics, lanes=lanes)
    wide = np.float64 if dtype == "float32" else np.longdouble
    exact = reference(op, *(x.astype(wide) for x in xs))
    error = error_in_ulp(got, exact)
    worst = int(error.argmax())
    at = [x[worst] for x in xs]
    assert error[worst] <= bound, f"{op}({at}) = {got[worst]!r}: {error[worst]:.3f} ULP from {exact[worst]!r}"
    signs = np.signbit(got) == np.signbit(exact)
    wrong = np.flatnonzero(~signs & (exact == 0) & (xs[0] == 0))
    assert wrong.size == 0, f"{op}({[x[wrong[:3]] for x in xs]}): the sign of zero is wrong"
    return float(error[worst])


@pytest.mark.parametrize("op", DOUBLE)
def test_float32_within_bound(op):
    check(op, "float32", 1 << 18, ULP[op]["float32"])


@pytest.mark.skipif(np.finfo(np.longdouble).nmant < 63, reason="long double is no wider than double here")
@pytest.mark.parametrize("op", DOUBLE)
def test_float64_within_bound(op):
    library = 0.5 if op in LIBRARY else 0.0  # the reference is then rounded to a double itself
    check(op, "float64", 1 << 16, ULP[op]["float64"] + library)


@pytest.mark.parametrize("op", ULP_FAST)
def test_fast_variants(op):
    check(op, "float32", 1 << 18, ULP_FAST[op]["float32"], numerics="fast")


def test_fast_sigmoid_is_close_and_keeps_its_ends():
    x = operands("sigmoid", "float32", 1 << 18, np.random.default_rng(5))[0]
    got = harness.run("sigmoid", ("float32",), "float32", x, numerics="fast")
    exact = reference("sigmoid", x.astype(np.float64))
    assert np.array_equal(np.isnan(got), np.isnan(x))
    assert np.nanmax(np.abs(got - exact)) <= 5e-7
    assert ((got >= 0) & (got <= 1) | np.isnan(x)).all()


@pytest.mark.parametrize("op", ["sin", "cos", "tan"])
def test_large_arguments_are_reduced(op):
    """Beyond the vector reduction the C library takes over, lane by lane."""
    rng = np.random.default_rng(7)
    for dtype, wide, span in (("float32", np.float64, 38), ("float64", np.longdouble, 300)):
        x = (10 ** rng.uniform(4, span, 1 << 14)).astype(dtype)
        got = harness.run(op, (dtype,), dtype, x)
        error = error_in_ulp(got, getattr(np, op)(x.astype(wide)))
        assert error.max() <= ULP[op][dtype]
