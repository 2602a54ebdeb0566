"""Convolutions, slopes, integrals and blocks: as NumPy has them, on random and special values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

RNG = np.random.default_rng()


@pytest.mark.parametrize("function", [np.convolve, np.correlate])
@pytest.mark.parametrize("dtypes", [("f8", "f4"), ("i4", "i8"), ("u1", "u1")], ids=str)
@pytest.mark.parametrize("sizes", [(1, 1), (3, 7), (1013, 31)], ids=str)
def test_sums_of_products(sizes: tuple[int, int], dtypes: tuple[str, str], function: Any,
                          agree: Callable[..., Any]) -> None:
    x, y = ((RNG.normal(size=n) * 100).astype(np.int64).astype(d) for n, d in zip(sizes, dtypes))
    agree(lambda x, y: tuple(function(x, y, mode) for mode in ("full", "same", "valid")), x, y)


def test_special_samples(agree: Callable[..., Any]) -> None:
    x = RNG.normal(size=37)
    x[5], x[20] = np.nan, np.inf
    agree(lambda x, y: (np.convolve(x, y), np.gradient(x), np.trapezoid(x)), x, RNG.normal(size=3))


REFUSED = [lambda x: np.convolve(x, []), lambda x: np.convolve(x[:0], x), lambda x: np.convolve(x[None], x),
           lambda x: np.correlate(x, x, "all"), lambda x: np.gradient(x[:1]), lambda x: np.gradient(x, 1, 2),
           lambda x: np.block([[x], x]), lambda x: np.block([x, []]), lambda x: np.block([[x], [x[1:]]])]


@pytest.mark.parametrize("function", REFUSED)
def test_what_numpy_refuses(function: Any, agree: Callable[..., Any]) -> None:
    agree(function, RNG.normal(size=4))


@pytest.mark.parametrize("dtype", ["f4", "f8", "i4", "u1"])
def test_slopes_and_integrals(dtype: str, agree: Callable[..., Any]) -> None:
    x = (RNG.normal(size=(5, 2, 9)) * 50).astype(dtype)
    agree(lambda x: (np.gradient(x), np.gradient(x, 0.5, axis=-1), np.gradient(x, 1, 2.0, 3.5),
                     np.gradient(x, 2, axis=(0, 2)), np.gradient(x[:, 0, 0])), x)
    places = np.sort(RNG.normal(size=9))
    agree(lambda x, p: (np.trapezoid(x), np.trapezoid(x, dx=0.25, axis=0), np.trapezoid(x, p),
                        np.trapezoid(x, x, axis=1)), x, places)


def test_blocks(agree: Callable[..., Any]) -> None:
    x, row, column = RNG.normal(size=(3, 4)), RNG.normal(size=4).astype("f4"), RNG.integers(9, size=(3, 1))
    agree(lambda x, r, c: (np.block([[x, c], [r, 2.5]]), np.block([r, r]), np.block([[[x]], [[x]]]),
                           np.block(x), np.block([[x, np.zeros((3, 2))], [np.ones((1, 6))]])), x, row, column)
