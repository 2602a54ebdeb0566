"""Random numbers from a key and a counter: the same on every target and thread count.

Words come from Philox4x32-10 (Salmon, Moraes, Dror, Shaw, Parallel Random Numbers: As Easy as 1, 2, 3, 2011).
"""
from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import pi, prod
from typing import Any

import numpy as np

from planish.ops.record import Op, Sample
from planish.ops.rules import (
    FLOATS,
    cast_to,
    define,
    known,
    like,
    no_slope,
    ops,
    require,
    require_at_least,
    require_dtype,
)
from planish.types import (
    FLOAT16,
    FLOAT32,
    FLOAT64,
    UINT32,
    UINT64,
    Dim,
    DType,
    Shape,
    TensorType,
    element_count,
)


@dataclass(frozen=True)
class RandomAttributes:
    shape: Shape
    dtype: DType = FLOAT32


@dataclass(frozen=True)
class BitsAttributes:
    shape: Shape
    dtype: DType = UINT32


@dataclass(frozen=True)
class SplitAttributes:
    count: Dim


# --- Philox

_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (np.uint32(0x9E3779B9), np.uint32(0xBB67AE85))
_HALF = np.uint64(32)


def philox(counter: np.ndarray, key: np.ndarray, rounds: int = 10) -> np.ndarray:
    """Philox4x32: uint32 [n, 4] counters and uint32 [2] key -> uint32 [n, 4] words."""
    c0, c1, c2, c3 = counter.T
    k0, k1 = key[:1].copy(), key[1:].copy()
    for _ in range(rounds):
        first, second = _MULTIPLIERS[0] * c0.astype(np.uint64), _MULTIPLIERS[1] * c2.astype(np.uint64)
        c0, c1, c2, c3 = (_high(second) ^ c1 ^ k0, second.astype(np.uint32), _high(first) ^ c3 ^ k1,
                          first.astype(np.uint32))
        k0, k1 = k0 + _WEYL[0], k1 + _WEYL[1]
    return np.stack([c0, c1, c2, c3], axis=-1)


def _high(product: np.ndarray) -> np.ndarray:
    return (product >> _HALF).astype(np.uint32)


def words(key: np.ndarray, count: int) -> np.ndarray:
    """The first `count` words of the key's stream: word i % 4 of counter (i // 4 low, i // 4 high, 0, 0)."""
    blocks = np.arange(-(-count // 4), dtype=np.uint64)
    zero = np.zeros(blocks.size, np.uint32)
    counter = np.stack([blocks.astype(np.uint32), (blocks >> _HALF).astype(np.uint32), zero, zero], axis=-1)
    return philox(counter, key).reshape(-1)[:count]


def _bits(a: BitsAttributes, key: np.ndarray) -> np.ndarray:
    """uint64 is two words, the lower half first."""
    shape = known(a.shape)
    count = prod(shape)
    if a.dtype is UINT32:
        return words(key, count).reshape(shape)
    low, high = words(key, 2 * count).astype(np.uint64).reshape(count, 2).T
    return (low | (high << _HALF)).reshape(shape)


# --- type rules

def _require_key(key: TensorType) -> None:
    require(key.shape == (2,), f"a key is u32[2], not {key}")


def _rule_for(dtypes: tuple[DType, ...]) -> Callable[..., TensorType]:
    def rule(attributes: RandomAttributes | BitsAttributes, key: TensorType) -> TensorType:
        _require_key(key)
        result = TensorType(attributes.dtype, attributes.shape)
        require_dtype(result, dtypes, "its dtype is one of")
        for d in attributes.shape:
            require_at_least("size", d, 0)
        return result
    return rule


def _split_rule(attributes: SplitAttributes, key: TensorType) -> TensorType:
    _require_key(key)
    require_at_least("count", attributes.count, 0)
    return key.with_shape((attributes.count, 2))


# --- formulas

def _uniform(a: RandomAttributes, key: Any) -> Any:
    """[0, 1): as many of the upper bits as the mantissa holds, so that nothing rounds up to 1."""
    wide = a.dtype is FLOAT64
    bits = ops.random_bits(key, shape=a.shape, dtype=UINT64 if wide else UINT32)
    kept = {FLOAT64: 53, FLOAT32: 24, FLOAT16: 11}.get(a.dtype, 8)
    whole = ops.cast(ops.shift_right(bits, (64 if wide else 32) - kept), dtype=a.dtype.accumulator)
    return cast_to(ops.mul(whole, 2.0 ** -kept), a.dtype)


def _normal(a: RandomAttributes, key: Any) -> Any:
    """Box and Muller, A Note on the Generation of Random Normal Deviates, 1958: cosines first, then sines."""
    count, dtype = element_count(a.shape), a.dtype.accumulator
    half = (count + 1) // 2
    uniform = ops.random_uniform(key, shape=(2, half), dtype=dtype)
    first, second = (ops.slice(uniform, starts=(i, 0), stops=(i + 1, half), steps=(1, 1)) for i in (0, 1))
    radius = ops.sqrt(ops.mul(ops.log(ops.sub(like(first, 1), first)), -2))
    angle = ops.mul(second, 2 * pi)
    both = ops.concat(ops.mul(radius, ops.cos(angle)), ops.mul(radius, ops.sin(angle)), axis=0)
    flat = ops.slice(ops.reshape(both, shape=(half * 2,)), starts=(0,), stops=(count,), steps=(1,))
    return cast_to(ops.reshape(flat, shape=a.shape), a.dtype)


def _split(a: SplitAttributes, key: Any) -> Any:
    """Words of the complemented key's stream, which is nobody else's."""
    return ops.random_bits(ops.bitwise_not(key), shape=(a.count, 2), dtype=UINT32)


# --- samples and records

def _key(rng: np.random.Generator) -> np.ndarray:
    return rng.integers(0, 2 ** 32, 2, dtype=np.uint32)


def _samples_of(dtypes: tuple[DType, ...]) -> Callable[..., Iterator[Sample]]:
    def samples(rng: np.random.Generator, dtype: DType) -> Iterator[Sample]:
        for of in dtypes:
            for shape in ((), (1,), (3,), (8,), (17,), (33,), (1000,), (3, 5), (0, 2), (2, 3, 7)):
                yield Sample((_key(rng),), {"shape": shape, "dtype": of}, f"{shape} {of.short}")
            yield Sample((np.array([0, 2 ** 32 - 1], np.uint32),), {"shape": (9,), "dtype": of},
                         f"key of ends, {of.short}")
        yield Sample((_key(rng),), {"shape": (70_000,), "dtype": dtypes[0]}, "parallel")
    return samples


def _split_samples(rng: np.random.Generator, dtype: DType) -> Iterator[Sample]:
    for count in (0, 1, 2, 17, 35_000):
        yield Sample((_key(rng),), {"count": count}, f"{count} keys" + ", parallel" * (count > 10_000))


random_bits = define("random_bits", "random", _rule_for((UINT32, UINT64)), _bits, operands=1,
                     dtypes=(UINT32,), attributes=BitsAttributes, traits={"random"},
                     samples=_samples_of((UINT32, UINT64)), gradient=no_slope)


def _composite(name: str, formula: Callable[..., Any], tolerance: str) -> Op:
    return define(name, "random", _rule_for(FLOATS), operands=1, dtypes=(UINT32,),
                  attributes=RandomAttributes, traits={"random", "composite"}, tolerance=tolerance,
                  samples=_samples_of(FLOATS), decompose=formula, gradient=no_slope)


random_uniform = _composite("random_uniform", _uniform, "exact")
random_normal = _composite("random_normal", _normal, "composite")
split_key = define("split_key", "random", _split_rule, operands=1, dtypes=(UINT32,),
                   attributes=SplitAttributes, traits={"random", "composite"}, samples=_split_samples,
                   decompose=_split, gradient=no_slope)
