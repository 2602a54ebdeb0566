"""Random indices, read and written, beside NumPy; and bfloat16, which NumPy has from ml_dtypes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

SHAPE = (4, 3, 5)


def random_key(rng: np.random.Generator) -> Any:
    """An index of up to four entries; now and then one that NumPy refuses."""
    entries: list[Any] = []
    rank = int(rng.integers(0, 5))
    width = tuple(rng.integers(1, 3, rng.integers(0, 3)))
    for axis in range(rank):
        size = SHAPE[min(axis, 2)]
        kind = rng.integers(0, 8)
        if kind < 3:
            bounds = [
                None if rng.random() < 0.3 else int(rng.integers(-size - 1, size + 2)) for _ in range(2)
            ]
            entries.append(slice(*bounds, [None, 1, 2, -1, -2, 3][rng.integers(0, 6)]))
        elif kind == 3:
            entries.append(int(rng.integers(-3, 3)))
        elif kind == 4:
            entries.append(None)
        elif kind == 5 and Ellipsis not in entries:
            entries.append(Ellipsis)
        else:
            entries.append(rng.integers(-3, 3, width).tolist())
    return tuple(entries)


@pytest.mark.parametrize("seed", range(12))
def test_random_indices(seed: int, agree: Callable[..., Any]) -> None:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(SHAPE).astype(np.float32)
    keys = [random_key(rng) for _ in range(12)]
    good = []
    for key in keys:
        try:
            x[key]
            good.append(key)
        except (IndexError, ValueError):
            agree(lambda x, key=key: x[key], x)

    def read(x: Any) -> Any:
        return [x[key] for key in good]

    def write(x: Any) -> Any:
        results = []
        for n, key in enumerate(good):
            y = x.copy()
            y[key] = n
            y[key] += y[key] * 2
            results.append(y)
        return results

    agree(read, x)
    agree(write, x)


@pytest.mark.parametrize("seed", range(4))
def test_indices_as_arguments(seed: int, agree: Callable[..., Any]) -> None:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(SHAPE).astype(np.float32)
    i, j = rng.integers(-3, 3, (2, 1)), rng.integers(-3, 3, 3)

    def f(x: Any, i: Any, j: Any, k: Any) -> Any:
        y = x.copy()
        y[i, j] = 1
        y[:, j, ::2] += 1
        y[k] = x[k] + 1
        y[1:, None, 0][..., j] -= 4
        return x[i, j], x[i, :, j], x[:, j], x[j][:, i], x[k], x[k, 1], x[..., k], x[j[0]], y

    agree(f, x, i, j, np.int32(rng.integers(-3, 3)))


BF16 = np.dtype(ml_dtypes.bfloat16)


@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: x + y,
        lambda x, y: x * 2.5,
        lambda x, y: np.exp(x),
        lambda x, y: np.maximum(x, y),
        lambda x, y: x < y,
        lambda x, y: x.astype(np.float32) - 1,
        lambda x, y: x + np.float32(1),
        lambda x, y: np.where(x > y, x, y),
        lambda x, y: x.T.reshape(2, -1)[0],
        lambda x, y: (x - y).astype(BF16),
    ],
)
def test_bfloat16(function: Callable[..., Any], agree: Callable[..., Any]) -> None:
    rng = np.random.default_rng(1)
    agree(function, *(rng.standard_normal((3, 4)).astype(BF16) for _ in range(2)))
