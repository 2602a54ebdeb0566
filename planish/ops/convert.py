"""Elementwise ops that choose, contract or change the dtype: select, fma, cast, bitcast."""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from planish.ops.record import NoAttributes, Sample
from planish.ops.rules import (
    NUMBERS,
    STORED,
    broadcast_rule,
    cast_to,
    define,
    like,
    ops,
    pointwise_gradient,
    require,
    require_dtype,
    require_same_dtype,
)
from planish.ops.samples import LENGTHS, PARALLEL, random_array, special_values, strided
from planish.types import (
    BOOL,
    FLOAT32,
    FLOAT64,
    INT8,
    STORAGE,
    UINT8,
    DType,
    TensorType,
    broadcast_shapes,
    dtype_of,
)


@dataclass(frozen=True)
class CastAttributes:
    dtype: DType


# --- select

def _select_rule(attributes: NoAttributes, cond: TensorType, x: TensorType, y: TensorType) -> TensorType:
    require_same_dtype(x, y)
    return TensorType(x.dtype, broadcast_shapes(cond.shape, x.shape, y.shape))


def _select_slopes(g: Any, z: Any, cond: Any, x: Any, y: Any) -> tuple[Any, Any, Any]:
    zero = like(g, 0)
    return None, ops.select(cond, g, zero), ops.select(cond, zero, g)


def _select_samples(rng: np.random.Generator, dtype: DType) -> Iterator[Sample]:
    """The record's dtype is that of the condition; the branches go through all others."""
    for branch in STORED:
        for n in LENGTHS:
            yield Sample(_branches(rng, branch, (n,), (n,), (n,)), label=f"{branch.short}, size {n}")
        yield Sample(_branches(rng, branch, (3, 1), (5,), ()), label=f"{branch.short}, broadcast")
        yield Sample(_branches(rng, branch, (0,), (0,), (1,)), label=f"{branch.short}, empty")
        cond, x, y = _branches(rng, branch, (5, 7), (5, 7), (5, 7))
        yield Sample((strided(cond), strided(x), y), label=f"{branch.short}, strided")
        values = special_values(branch)
        yield Sample((rng.uniform(size=values.size) < 0.5, values, values[::-1]),
                     label=f"{branch.short}, special")
    yield Sample(_branches(rng, FLOAT64, (PARALLEL,), (PARALLEL,), (PARALLEL,)), label="parallel")


def _branches(rng: np.random.Generator, dtype: DType, *shapes: tuple[int, ...]) -> tuple[np.ndarray, ...]:
    first, *rest = shapes
    return (random_array(rng, BOOL, first), *(random_array(rng, dtype, s) for s in rest))


select = define("select", "convert", _select_rule, lambda a, cond, x, y: np.where(cond, x, y), operands=3,
                dtypes=(BOOL,), traits={"pointwise"}, samples=_select_samples,
                gradient=pointwise_gradient(_select_slopes))


# --- fma: one rounding

def fused(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
    """x * y + z with one rounding for floats (float64: to the last place but in the subnormal range)."""
    dtype = dtype_of(x)
    if not dtype.is_float:
        return x * y + z
    if dtype is FLOAT64:
        return _fused_float64(x, y, z)
    # In float64 the product of narrower floats is exact; the sum rounds to odd so that the last one is right.
    return _sum_to_odd(x.astype(np.float64) * y.astype(np.float64), z.astype(np.float64)).astype(x.dtype)


def _two_sum(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def _sum_to_odd(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a + b, inexact sums to the neighbour with an odd last bit (Boldo and Melquiond, IEEE TC 57, 2008)."""
    total, error = map(np.asarray, _two_sum(a, b))
    even = (total.view(np.int64) & 1) == 0
    moved = np.nextafter(total, np.where(error > 0, np.inf, -np.inf))
    return np.where(even & (error != 0) & np.isfinite(total), moved, total)


def _two_product(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The product and its error, by Veltkamp's splitting."""
    product = a * b
    (ah, al), (bh, bl) = _split(a), _split(b)
    return product, al * bl - (((product - ah * bh) - al * bh) - ah * bl)


def _split(a: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    scaled = a * 134217729.0  # 2^27 + 1
    high = scaled - (scaled - a)
    return high, a - high


def _fused_float64(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
    """Boldo and Melquiond's emulation, on mantissas so that nothing overflows on the way."""
    plain = np.where(np.isinf(z) & np.isfinite(x) & np.isfinite(y), z, x * y + z)
    (mx, ex), (my, ey) = np.frexp(x), np.frexp(y)
    exponent = ex + ey
    shifted = np.ldexp(z, -exponent)
    uh, ul = _two_product(mx, my)
    th, tl = _two_sum(shifted, ul)
    vh, vl = _two_sum(uh, th)
    exact = np.ldexp(vh + _sum_to_odd(tl, vl), exponent)
    usable = np.isfinite(x) & np.isfinite(y) & np.isfinite(z) & np.isfinite(shifted) & (x != 0) & (y != 0)
    return np.where(usable & (np.abs(shifted) < 2.0 ** 200), exact, plain)


def _fma_rule(attributes: NoAttributes, x: TensorType, y: TensorType, z: TensorType) -> TensorType:
    return broadcast_rule(attributes, x, y, z)


def _fma_samples(rng: np.random.Generator, dtype: DType) -> Iterator[Sample]:
    def x(*shape: int) -> np.ndarray:
        return random_array(rng, dtype, shape)
    for n in LENGTHS:
        yield Sample((x(n), x(n), x(n)), label=f"size {n}")
    values = special_values(dtype)
    yield Sample((values[:, None, None], values[:, None], values), label="special")
    yield Sample((x(PARALLEL), x(PARALLEL), x(PARALLEL)), label="parallel")
    yield Sample((x(3, 1), x(5), x()), label="broadcast")
    yield Sample((x(0), x(1), x(0)), label="empty")
    yield Sample((strided(x(5, 7)), x(7, 5).T, x(5, 1)), label="strided")


fma = define("fma", "convert", _fma_rule, lambda a, x, y, z: fused(x, y, z), operands=3, dtypes=NUMBERS,
             traits={"pointwise"}, tolerance="rounded", samples=_fma_samples,
             gradient=pointwise_gradient(lambda g, r, x, y, z: (g * y, g * x, g)))


# --- cast

def _cast_rule(attributes: CastAttributes, x: TensorType) -> TensorType:
    return x.with_dtype(attributes.dtype)


def converted(x: np.ndarray, dtype: DType) -> np.ndarray:
    """Floats to integers: towards zero (out of range, the value is the machine's). To bool: x != 0.

    Floats to floats of 8 bits and less: to nearest, ties to even; too large gives infinity, or NaN where the
    format has none, or the largest number where it has neither. Integers of 4 and 2 bits keep the low bits.
    """
    of = dtype_of(x)
    if of.is_storage:
        x = x.astype(FLOAT32.numpy if of.is_float else whole_byte(of).numpy)
    elif of.is_narrow_float and (dtype.is_integer or dtype.is_storage):
        x = x.astype(np.float32)
    if dtype.is_storage and dtype.is_integer:
        x = x.astype(whole_byte(dtype).numpy)
    return x.astype(dtype.numpy)


def whole_byte(dtype: DType) -> DType:
    """The integer of 8 bits with the sign of one of 4 or 2."""
    return INT8 if dtype.kind == "int" else UINT8


def _cast_gradient(g: Any, attributes: CastAttributes, y: Any, x: Any) -> Sequence[Any]:
    of = dtype_of(x.dtype)
    smooth = all(d.is_float and not d.is_storage for d in (of, attributes.dtype))
    return (cast_to(g, of) if smooth else None,)


def _cast_samples(rng: np.random.Generator, dtype: DType) -> Iterator[Sample]:
    for to in STORED:
        attributes = {"dtype": to}
        inside = dtype.is_float and to.is_integer  # where the value is defined

        def x(*shape: int, to: DType = to) -> np.ndarray:
            return _convertible(rng, dtype, to, shape)
        for n in LENGTHS:
            yield Sample((x(n),), attributes, f"to {to.short}, size {n}")
        if not inside:
            yield Sample((special_values(dtype),), attributes, f"to {to.short}, special")
        if to.is_storage and dtype.is_float and not inside:
            yield Sample((between(rng, dtype, to),), attributes, f"to {to.short}, halves, special")
        yield Sample((x(3, 0),), attributes, f"to {to.short}, empty")
        yield Sample((strided(x(5, 7)),), attributes, f"to {to.short}, strided")
    yield Sample((random_array(rng, dtype, (PARALLEL,)),), {"dtype": FLOAT64}, "parallel")


def _convertible(rng: np.random.Generator, dtype: DType, to: DType, shape: tuple[int, ...]) -> np.ndarray:
    """Random values; on the way from floats to integers only those that every integer dtype has."""
    if not (dtype.is_float and to.is_integer):
        return random_array(rng, dtype, shape)
    low = 0 if to.kind == "uint" else -4
    if not dtype.is_storage:
        return random_array(rng, dtype, shape, low)
    values = special_values(dtype)
    wide = values.astype(np.float32)
    return rng.choice(values[(wide >= low) & (wide < 128)], shape)


def between(rng: np.random.Generator, dtype: DType, to: DType) -> np.ndarray:
    """Values of a float dtype about those of a narrower one: themselves, halves between, and a little off."""
    grid = special_values(to).astype(np.float64)
    grid = np.unique(grid[np.isfinite(grid)])
    grid = np.concatenate([grid, (grid[1:] + grid[:-1]) / 2, grid * 1.25, [2 * grid[0], 2 * grid[-1]]])
    off = rng.choice([-1e-12, -1e-6, -1e-3, 1e-3, 1e-6, 1e-12], grid.shape)
    with np.errstate(over="ignore"):
        return np.concatenate([grid, grid * (1 + off)]).astype(dtype.numpy)


cast = define("cast", "convert", _cast_rule, lambda a, x: converted(x, a.dtype), operands=1, dtypes=STORED,
              attributes=CastAttributes, traits={"pointwise"}, tolerance="rounded", samples=_cast_samples,
              gradient=_cast_gradient)


# --- bitcast

_BITCASTABLE = (*NUMBERS, *STORAGE)


def _bitcast_rule(attributes: CastAttributes, x: TensorType) -> TensorType:
    to = attributes.dtype
    require_dtype(TensorType(to), _BITCASTABLE, "its dtype is one of")
    require(x.dtype.bits == to.bits,
            f"{x.dtype.short} has {x.dtype.bits} bits and {to.short} has {to.bits}")
    return x.with_dtype(to)


def _bitcast_samples(rng: np.random.Generator, dtype: DType) -> Iterator[Sample]:
    for to in (d for d in _BITCASTABLE if d.bits == dtype.bits):
        for n in LENGTHS:
            yield Sample((random_array(rng, dtype, (n,)),), {"dtype": to}, f"to {to.short}, size {n}")
        yield Sample((special_values(dtype),), {"dtype": to}, f"to {to.short}, special")
        yield Sample((strided(random_array(rng, dtype, (5, 7))),), {"dtype": to}, f"to {to.short}, strided")
        yield Sample((random_array(rng, dtype, (0, 2)),), {"dtype": to}, f"to {to.short}, empty")
        yield Sample((random_array(rng, dtype, (PARALLEL,)),), {"dtype": to}, f"to {to.short}, parallel")


bitcast = define("bitcast", "convert", _bitcast_rule, lambda a, x: x.view(a.dtype.numpy), operands=1,
                 dtypes=_BITCASTABLE, attributes=CastAttributes, traits={"pointwise"},
                 samples=_bitcast_samples)
