"""Functions NumPy does not have (erf, log-gamma, fma, Philox), and rounding of narrow floats."""
from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from planish.ops import OPS
from planish.ops.random import philox, words
from planish.ops.samples import special_values
from planish.types import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, UINT32, UINT64, dtype_of
from tests.ops.cases import assert_same


def in_ulp(actual: np.ndarray, expected: np.ndarray) -> float:
    ok = (actual == expected) | (np.isnan(actual) & np.isnan(expected))
    with np.errstate(invalid="ignore"):
        return float(np.max(np.where(ok, 0, np.abs(actual - expected) / np.spacing(np.abs(expected)))))


@pytest.mark.filterwarnings("ignore:overflow")
@pytest.mark.parametrize("name", ["erf", "erfc"])
def test_error_functions(name: str) -> None:
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.uniform(-7, 7, 20_000), rng.uniform(-1, 27, 10_000), special_values(FLOAT64),
                        [0.84375, 1.25, 1 / 0.35, 6.0, 28.0, -6.0, 1e-310]])
    expected = np.array([getattr(math, name)(v) for v in x])
    assert in_ulp(OPS[name](x), expected) <= 4
    assert in_ulp(OPS[name](x.astype(np.float32)),
                  np.array([getattr(math, name)(v) for v in x.astype(np.float32)], np.float32)) <= 1


def test_lgamma() -> None:
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.uniform(0, 3, 20_000), rng.uniform(-10, 30, 10_000),
                        10.0 ** rng.uniform(-300, 300, 3000)])
    expected = np.array([math.lgamma(v) for v in x])  # itself less exact near its zeros at 1 and 2
    assert np.max(np.abs(OPS["lgamma"](x) - expected) / np.maximum(np.abs(expected), 1)) < 1e-14
    d = rng.uniform(-1e-4, 1e-4, 1000)
    zeta = (math.pi ** 2 / 6, 1.2020569031595942, math.pi ** 4 / 90)  # of 2, 3 and 4
    series = -np.euler_gamma * d + sum(z / k * (-d) ** k for k, z in enumerate(zeta, start=2))
    exact = (1 + d) - 1
    np.testing.assert_allclose(OPS["lgamma"](1 + d), series * exact / d, rtol=1e-11)
    assert OPS["lgamma"](np.array([0.0, -0.0, -1, -2, np.inf, -np.inf])).tolist() == [np.inf] * 6
    assert np.isnan(OPS["lgamma"](np.array(np.nan)))


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "float64"])
def test_fma_rounds_once(name: str) -> None:
    """Against exact fractions; with z = -x * y rounded, what is left is the rounding error of the product."""
    dtype = dtype_of(name)
    rng = np.random.default_rng(0)
    x, y = (rng.uniform(-2, 2, 3000).astype(dtype.numpy) for _ in range(2))
    product = (x * y).astype(dtype.numpy)
    for z in (-product, rng.uniform(-4, 4, 3000).astype(dtype.numpy),
              (product * product.dtype.type(1e-3)).astype(dtype.numpy)):
        actual = OPS["fma"](x, y, z)
        for a, b, c, r in zip(x.tolist(), y.tolist(), z.tolist(), actual.tolist(), strict=True):
            exact = Fraction(a) * Fraction(b) + Fraction(c)
            below, above = (float(np.nextafter(dtype.numpy.type(r), dtype.numpy.type(s * np.inf)))
                            for s in (-1, 1))
            assert abs(exact - Fraction(r)) <= min(abs(exact - Fraction(below)), abs(exact - Fraction(above)))


def test_fma_of_extremes() -> None:
    huge, x = np.finfo(np.float64).max, np.array([1.0])
    assert OPS["fma"](x * huge, x * 2, -x * huge) == huge
    assert np.isnan(OPS["fma"](x * np.inf, x * 0, x)) and OPS["fma"](x * huge, x * 4, x) == np.inf
    assert OPS["fma"](x * 1e-200, x * 1e-200, x * 1e300) == 1e300
    assert OPS["fma"](x * 0, x, -x * 0) == 0


def test_philox_known_answers() -> None:
    """The test vectors that come with the authors' own code (Random123, kat_vectors)."""
    ones, pi = 0xFFFFFFFF, (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344)
    for counter, key, expected in (
            ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
            ((ones,) * 4, (ones,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
            (pi, (0xA4093822, 0x299F31D0), (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1))):
        result = philox(np.array([counter], np.uint32), np.array(key, np.uint32))
        assert tuple(result[0].tolist()) == expected


def test_random_bits_do_not_depend_on_the_shape() -> None:
    key = np.array([1, 2], np.uint32)
    flat = OPS["random_bits"](key, shape=(35,), dtype=UINT32)
    assert_same(OPS["random_bits"](key, shape=(5, 7), dtype=UINT32), flat.reshape(5, 7))
    assert_same(OPS["random_bits"](key, shape=(3,), dtype=UINT32), flat[:3])
    wide = OPS["random_bits"](key, shape=(17,), dtype=UINT64)
    assert wide.tolist() == [int(a) | int(b) << 32 for a, b in flat[:34].reshape(17, 2)]
    assert words(key, 0).size == 0


@pytest.mark.parametrize("dtype", [FLOAT16, BFLOAT16, FLOAT32, FLOAT64], ids=str)
def test_random_numbers_are_distributed_as_they_say(dtype: Any) -> None:
    key, n = np.array([7, 11], np.uint32), 50_000
    u = OPS["random_uniform"](key, shape=(n,), dtype=dtype)
    assert u.dtype == dtype.numpy and np.all(u >= 0) and np.all(u < 1)
    u = np.sort(u.astype(np.float64))
    assert np.max(np.abs(u - (np.arange(n) + 0.5) / n)) < 2 / math.sqrt(n) + 2.0 ** -8 * (dtype is BFLOAT16)
    z = OPS["random_normal"](key, shape=(n + 1,), dtype=dtype)
    assert z.dtype == dtype.numpy and np.all(np.isfinite(z))
    z = z.astype(np.float64)
    assert abs(z.mean()) < 0.02 and abs(z.std() - 1) < 0.02 and abs((z ** 4).mean() - 3) < 0.2


def test_keys_split_into_different_keys() -> None:
    keys = OPS["split_key"](np.array([1, 2], np.uint32), count=1000)
    assert len({tuple(k) for k in keys.tolist()}) == 1000
    again = OPS["split_key"](np.array([1, 2], np.uint32), count=1000)
    assert_same(keys, again)
    assert not np.array_equal(keys, OPS["split_key"](np.array([1, 3], np.uint32), count=1000))


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
@pytest.mark.parametrize("op", ["add", "mul", "div", "sqrt", "exp", "sigmoid", "mod", "atan2"])
def test_narrow_floats_round_once(op: str, name: str) -> None:
    """The float32 result, rounded."""
    rng = np.random.default_rng(0)
    operands = [rng.uniform(0.1, 4, 1000).astype(dtype_of(name).numpy)
                for _ in range(1 + (OPS[op].family == "binary"))]
    wide = OPS[op](*(a.astype(np.float32) for a in operands))
    assert_same(OPS[op](*operands), wide.astype(operands[0].dtype))


@pytest.mark.parametrize("op", ["softmax", "layer_norm", "gelu", "silu"])
def test_composites_of_narrow_floats_round_once(op: str) -> None:
    sample = next(s for s in OPS[op].samples(np.random.default_rng(0), FLOAT16) if s.operands[0].size > 20)
    wide = OPS[op](*(a.astype(np.float32) for a in sample.operands), **sample.attributes)
    assert_same(OPS[op](*sample.operands, **sample.attributes), wide.astype(np.float16))


@pytest.mark.parametrize("name", ["maximum", "minimum"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_nan_comes_through_from_either_side(name: str, dtype: str) -> None:
    x = np.array([np.nan, 1.0] * 9, dtype_of(dtype).numpy)
    assert np.isnan(OPS[name](x, x[::-1])).all()
    assert not np.isnan(OPS["f" + name[:3]](x, x[::-1])).any()
    assert np.isnan(OPS["reduce_max"](x, axes=(0,))) and np.isnan(OPS["relu"](x)[0])
    assert OPS["argmax"](x, axis=0) == OPS["argmin"](x, axis=0) == 0


def test_sigmoid_does_not_overflow() -> None:
    x = np.array([-1000, -100, -89, 0, 89, 1000, -np.inf, np.inf, np.nan], np.float32)
    expected = np.array([0.0, *(1 / (1 + math.exp(-float(v))) for v in x[1:5]), 1, 0, 1, np.nan])
    np.testing.assert_allclose(OPS["sigmoid"](x), expected, rtol=1e-5, atol=1e-45)
    assert OPS["sigmoid"](np.float32(-100.0)) > 0  # subnormal, kept
