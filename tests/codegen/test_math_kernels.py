"""The transcendental kernels against a wider format: float32 against float64, float64 against long double."""
from __future__ import annotations

import ctypes
import ctypes.util
import importlib.util
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from planish.codegen.llvm.math import DOUBLE, ULP, ULP_FAST

pytest.importorskip("llvmlite")
_spec = importlib.util.spec_from_file_location("elementwise_harness", Path(__file__).with_name("elementwise_harness.py"))
harness = sys.modules.setdefault("elementwise_harness", importlib.util.module_from_spec(_spec))
_spec.loader.exec_module(harness)

BINARY = {"pow": np.power, "hypot": np.hypot, "atan2": np.arctan2}
NUMPY = {"asin": "arcsin", "acos": "arccos", "atan": "arctan", "asinh": "arcsinh", "acosh": "arccosh",
         "atanh": "arctanh"}
LIBRARY = ("erf", "erfc", "lgamma")
DOMAIN = {"exp": (-110, 95), "exp2": (-155, 130), "expm1": (-20, 90), "sin": (-300, 300), "cos": (-300, 300),
          "tan": (-300, 300), "asin": (-1, 1), "acos": (-1, 1), "atanh": (-1, 1), "sinh": (-90, 90),
          "cosh": (-90, 90), "tanh": (-10, 10), "erf": (-5, 5), "erfc": (-6, 12), "sigmoid": (-105, 105),
          "log": (0, 3), "log2": (0, 3), "log10": (0, 3), "log1p": (-1, 3), "acosh": (1, 5), "lgamma": (0, 50)}
WIDER = {"exp": 7.5, "exp2": 7.5, "expm1": 7.5, "sinh": 7.8, "cosh": 7.8, "sigmoid": 7, "erfc": 2.4}


def reference(op: str, *xs: np.ndarray) -> np.ndarray:
    """`op` in the format of `xs`, which is wider than the one under test."""
    if op in BINARY:
        return BINARY[op](*xs)
    if op in LIBRARY:
        return np.array([_library(op)(v) for v in xs[0].astype(np.float64)], xs[0].dtype)
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
    """Half from the interval where the function does something, half log-uniform over all magnitudes, with specials."""
    low, high = (WIDER[op] * v for v in DOMAIN[op]) if dtype == "float64" and op in WIDER else DOMAIN.get(op, (-4, 4))
    span = 37 if dtype == "float32" else 300
    xs = []
    for _ in range(2 if op in BINARY else 1):
        x = rng.uniform(low, high, n)
        with np.errstate(all="ignore"):
            x[: n // 2] = np.copysign(10 ** rng.uniform(-span - 7, span, n // 2), rng.uniform(-1, 1, n // 2))
        info = np.finfo(dtype)
        special = np.array([0, -0.0, np.inf, -np.inf, np.nan, 1, -1, 2, -2, 0.5, -0.5, 3, info.tiny, -info.tiny,
                            info.smallest_subnormal, -info.smallest_subnormal, info.max, -info.max, info.eps, 1e5])
        x[rng.permutation(n)[: 40 * special.size]] = np.tile(special, 40)
        xs.append(x.astype(dtype))
    return xs


def error_in_ulp(got: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """The distance in units of the last place of the rounded exact result; inf where one of the two is not finite."""
    rounded = exact.astype(got.dtype)
    unit = np.maximum(np.spacing(np.abs(rounded)), np.finfo(got.dtype).smallest_subnormal)
    with np.errstate(all="ignore"):
        error = np.abs(got.astype(exact.dtype) - exact) / unit
        edge = ~np.isfinite(rounded) | ~np.isfinite(got)
    agree = (got == rounded) | (np.isnan(got) & np.isnan(rounded))
    # a result that rounds to inf may come as the largest number, and the other way round
    near = np.abs(np.where(np.isinf(got), np.copysign(np.finfo(got.dtype).max, got), got)) == np.finfo(got.dtype).max
    near &= np.abs(exact) <= np.finfo(got.dtype).max * (1 + 2 * np.finfo(got.dtype).eps)
    return np.where(edge, np.where(agree | near, 0.0, np.inf), error).astype(np.float64)


def check(op: str, dtype: str, n: int, bound: float, numerics: str = "default", lanes=harness.LANES) -> float:
    xs = operands(op, dtype, n, np.random.default_rng([len(op), ord(op[0]), n]))
    if op == "lgamma":
        xs = [np.abs(xs[0])]
    got = harness.run(op, (dtype,) * len(xs), dtype, *xs, numerics=numerics, lanes=lanes)
    wide = np.float64 if dtype == "float32" else np.longdouble
    with np.errstate(all="ignore"):
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
    check(op, "float32", 1 << 20, ULP[op]["float32"])


@pytest.mark.skipif(np.finfo(np.longdouble).nmant < 63, reason="long double is no wider than double here")
@pytest.mark.parametrize("op", DOUBLE)
def test_float64_within_bound(op):
    library = 0.5 if op in LIBRARY else 0.0  # the reference is then rounded to a double itself
    check(op, "float64", 1 << 17, ULP[op]["float64"] + library)


@pytest.mark.parametrize("op", ULP_FAST)
def test_fast_variants(op):
    check(op, "float32", 1 << 18, ULP_FAST[op]["float32"], numerics="fast")
