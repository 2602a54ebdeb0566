"""Sample operands for the records: random and special values, at the sizes where generated code differs.

In: a generator and a dtype. Out: Samples; the label says what is special. Nothing here judges results.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np

from planish.ops.record import Sample
from planish.types import DType

LENGTHS = (1, 3, 8, 17, 33, 1000)  # one lane, tails, whole vectors, vectors and a tail
PARALLEL = 70_000                  # enough for more than one thread
Samples = Callable[[np.random.Generator, DType], Iterator[Sample]]


def random_array(rng: np.random.Generator, dtype: DType, shape: tuple[int, ...], low: float | None = None,
                 high: float | None = None) -> np.ndarray:
    """Uniform in [low, high): by default [-4, 4) for floats, the whole range for integers. Of dtypes for
    storage, any bits."""
    if dtype.kind == "bool":
        return np.asarray(rng.integers(0, 2, shape), dtype=bool)
    if dtype.is_storage:
        return np.asarray(rng.integers(0, 2 ** dtype.bits, shape, np.uint8)).view(dtype.numpy)
    if dtype.is_float:
        values = rng.uniform(-4 if low is None else low, 4 if high is None else high, shape)
        return np.asarray(values).astype(dtype.numpy)
    info = np.iinfo(dtype.numpy)
    least = info.min if low is None else max(int(low), info.min)
    most = info.max if high is None else min(int(high) - 1, info.max)
    return np.asarray(rng.integers(least, max(most, least), shape, dtype=dtype.numpy, endpoint=True))


@cache
def special_values(dtype: DType) -> np.ndarray:
    """Where meanings differ: NaN, infinities, signed zeros, subnormals, halves, extremes."""
    if dtype.kind == "bool":
        return np.array([False, True])
    if dtype.is_storage:
        return np.arange(2 ** dtype.bits, dtype=np.uint8).view(dtype.numpy)
    if dtype.is_integer:
        info = np.iinfo(dtype.numpy)
        whole = [0, 1, 2, 3, 7, dtype.bits - 1, dtype.bits, info.max - 1, info.max, info.min, info.min + 1]
        return np.array(whole + [-1, -2, -3, -7] * (dtype.kind == "int"), dtype.numpy)
    with np.errstate(over="ignore"):
        tiny, huge = _extremes(dtype)
        positive = np.array([0.0, tiny, 3 * tiny, 1e-3, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 100.0, np.inf])
        values = np.concatenate([positive, -positive, [np.nan]]).astype(dtype.numpy)
        return np.concatenate([values, np.array([huge, -huge], dtype.numpy)])


def _extremes(dtype: DType) -> tuple[float, float]:
    """The smallest subnormal and the largest finite value."""
    if dtype.short == "bf16":
        return 2.0 ** -133, (2 - 2.0 ** -7) * 2.0 ** 127
    info = np.finfo(dtype.numpy)
    return float(info.smallest_subnormal), float(info.max)


def special_pairs(dtype: DType) -> tuple[np.ndarray, np.ndarray]:
    """Every pair of special values."""
    values = special_values(dtype)
    left, right = np.meshgrid(values, values, indexing="ij")
    return left.ravel(), right.ravel()


def strided(array: np.ndarray) -> np.ndarray:
    """The same values, not contiguous: every second element of a larger array, the last axis outermost."""
    wide = np.zeros(tuple(2 * n for n in reversed(array.shape)), array.dtype).transpose()
    view = wide[tuple(slice(None, None, 2) for _ in array.shape)]
    view[...] = array
    return view


def unary_samples(low: float | None = None, high: float | None = None, *cases: dict[str, Any]) -> Samples:
    """Each under every one of the attribute settings `cases` (by default, one without attributes)."""
    def operands(rng: np.random.Generator, dtype: DType) -> Iterator[tuple[np.ndarray, str]]:
        def x(*shape: int) -> np.ndarray:
            return random_array(rng, dtype, shape, low, high)
        for n in LENGTHS:
            yield x(n), f"size {n}"
        yield special_values(dtype), "special"
        yield x(PARALLEL), "parallel"
        yield x(), "scalar"
        yield x(3, 0), "empty"
        yield strided(x(5, 7)), "strided"
        yield x(4, 3, 5).transpose(2, 0, 1), "transposed"

    def samples(rng: np.random.Generator, dtype: DType) -> Iterator[Sample]:
        for attributes in cases or ({},):
            for x, label in operands(rng, dtype):
                yield Sample((x,), attributes, label)
    return samples


def binary_samples(low: float | None = None, high: float | None = None, *,
                   right: tuple[float, float] | None = None, specials: bool = True) -> Samples:
    """`right` is the range of the second operand where it differs."""
    def samples(rng: np.random.Generator, dtype: DType) -> Iterator[Sample]:
        def x(*shape: int) -> np.ndarray:
            return random_array(rng, dtype, shape, low, high)

        def y(*shape: int) -> np.ndarray:
            return random_array(rng, dtype, shape, *(right or (low, high)))
        for n in LENGTHS:
            yield Sample((x(n), y(n)), label=f"size {n}")
        if specials:
            yield Sample(special_pairs(dtype), label="special")
        yield Sample((x(PARALLEL), y(PARALLEL)), label="parallel")
        yield Sample((x(3, 1), y(1, 5)), label="broadcast")
        yield Sample((x(4, 17), y()), label="scalar right")
        yield Sample((x(1), y(2, 3, 17)), label="scalar left")
        yield Sample((x(2, 0, 3), y(3)), label="empty")
        yield Sample((x(1, 1), y(1)), label="size-1")
        yield Sample((strided(x(5, 7)), y(7, 5).T), label="strided")
    return samples


def varied(*cases: dict[str, Any], shape: tuple[int, ...]) -> Samples:
    """One operand of `shape` under several attribute settings: contiguous, strided, with special values."""
    def samples(rng: np.random.Generator, dtype: DType) -> Iterator[Sample]:
        for attributes in cases:
            label = f"{shape}, " + ", ".join(f"{k}={v}" for k, v in attributes.items())
            x = random_array(rng, dtype, shape)
            yield Sample((x,), attributes, f"{label}, parallel" if x.size >= PARALLEL else label)
            yield Sample((strided(x),), attributes, f"{label}, strided")
            yield Sample((with_specials(rng, x, dtype),), attributes, f"{label}, special")
    return samples


def with_specials(rng: np.random.Generator, array: np.ndarray, dtype: DType) -> np.ndarray:
    """A copy with about a quarter of the elements replaced by special values; of floats, one at least by NaN
    and one by an infinity."""
    chosen = rng.choice(special_values(dtype), array.shape)
    made = np.where(rng.uniform(size=array.shape) < 0.25, chosen, array).astype(array.dtype)
    if dtype.is_float and not dtype.is_storage:
        at = rng.permutation(made.size)[:2]
        made.flat[at] = np.array([np.nan, rng.choice([np.inf, -np.inf])])[:len(at)]
    return made


def joined(*sources: Samples) -> Samples:
    def samples(rng: np.random.Generator, dtype: DType) -> Iterator[Sample]:
        for source in sources:
            yield from source(rng, dtype)
    return samples
