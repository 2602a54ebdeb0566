"""reduce_window: a reduction over every place of a window. Padding is the identity of the reduction."""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from planish.ops.contract import Pairs, dilated, require_window, sliding, window_positions
from planish.ops.record import Sample
from planish.ops.rules import NUMBERS, define, known, like, ops, require, require_one_per_axis, widened
from planish.ops.samples import random_array, strided, with_specials
from planish.ops.scan import highest, lowest
from planish.ops.shape import padded
from planish.types import DType, Shape, TensorType, dtype_of


@dataclass(frozen=True)
class WindowAttributes:
    """One entry per axis. `kind` is sum, max, min or prod."""

    kind: str
    window: tuple[int, ...]
    strides: tuple[int, ...]
    padding: Pairs
    dilation: tuple[int, ...]


_KINDS: dict[str, tuple[np.ufunc, Any]] = {
    "sum": (np.add, lambda d: 0), "prod": (np.multiply, lambda d: 1),
    "max": (np.maximum, lowest), "min": (np.minimum, highest)}


def identity_of(kind: str, dtype: DType) -> Any:
    """What the padding holds."""
    return _KINDS[kind][1](dtype)


def _rule(attributes: WindowAttributes, x: TensorType) -> TensorType:
    require(attributes.kind in _KINDS, f"kind is one of {', '.join(_KINDS)}, not {attributes.kind}")
    require_one_per_axis("window", attributes.window, x.rank)
    require_window(attributes.strides, attributes.padding, attributes.dilation, x.rank)
    require(all(w >= 1 for w in attributes.window), f"window {attributes.window} has a size less than 1")
    return x.with_shape(_positions(attributes, x.shape))


def _positions(a: WindowAttributes, shape: Shape) -> Shape:
    return tuple(map(window_positions, shape, a.window, a.strides, a.dilation, a.padding))


def _meaning(a: WindowAttributes, x: np.ndarray) -> np.ndarray:
    wide, (ufunc, identity) = widened(x), _KINDS[a.kind]
    low, high = (tuple(p[i] for p in a.padding) for i in (0, 1))
    inside = padded(wide, identity(dtype_of(wide)), low, high, (0,) * x.ndim)
    if inside.size == 0:
        return np.empty(known(_positions(a, x.shape)), x.dtype)
    views = sliding(inside, a.window, a.strides, a.dilation)
    axes = tuple(range(x.ndim, 2 * x.ndim))
    return np.asarray(ufunc.reduce(views, axis=axes, dtype=wide.dtype)).astype(x.dtype, copy=False)


# --- gradient

def _gradient(g: Any, a: WindowAttributes, y: Any, x: Any) -> Sequence[Any]:
    """One strided slice of the padded operand per place in the window: its share of g is put back there."""
    padding = {"low": tuple(p[0] for p in a.padding), "high": tuple(p[1] for p in a.padding)}
    inside = ops.pad(x, like(x, identity_of(a.kind, dtype_of(x.dtype))), **padding)
    places = list(product(*map(range, a.window)))
    slices = [_slice_at(inside, a, place, tuple(g.shape)) for place in places]
    shares = {"sum": _sum_shares, "prod": _prod_shares}.get(a.kind, _first_shares)(g, y, slices)
    total: Any = None
    for place, share in zip(places, shares, strict=True):
        back = _put_back(share, a, place, tuple(inside.shape))
        total = back if total is None else total + back
    stops = tuple(n + low for n, low in zip(x.shape, padding["low"], strict=True))
    return (ops.slice(total, starts=padding["low"], stops=stops, steps=(1,) * len(stops)),)


def _slice_at(x: Any, a: WindowAttributes, place: Sequence[int], counts: Sequence[Any]) -> Any:
    starts = tuple(p * d for p, d in zip(place, a.dilation, strict=True))
    stops = tuple(at + dilated(n, s) for at, n, s in zip(starts, counts, a.strides, strict=True))
    return ops.slice(x, starts=starts, stops=stops, steps=a.strides)


def _put_back(share: Any, a: WindowAttributes, place: Sequence[int], shape: Sequence[Any]) -> Any:
    low = tuple(p * d for p, d in zip(place, a.dilation, strict=True))
    reach = map(dilated, share.shape, a.strides)
    high = tuple(n - at - r for n, at, r in zip(shape, low, reach, strict=True))
    return ops.pad(share, like(share, 0), low=low, high=high, interior=tuple(s - 1 for s in a.strides))


def _sum_shares(g: Any, y: Any, slices: Sequence[Any]) -> list[Any]:
    return [g for _ in slices]


def _first_shares(g: Any, y: Any, slices: Sequence[Any]) -> list[Any]:
    """All to the first element that is the extremum."""
    shares, left, zero = [], g, like(g, 0)
    for x in slices:
        hit = ops.eq(x, y)
        shares.append(ops.select(hit, left, zero))
        left = ops.select(hit, zero, left)
    return shares


def _prod_shares(g: Any, y: Any, slices: Sequence[Any]) -> list[Any]:
    """g times the product of the other elements: those before times those after."""
    before, after = [g], [like(g, 1)]
    for x in slices[:-1]:
        before.append(before[-1] * x)
    for x in slices[:0:-1]:
        after.append(after[-1] * x)
    return [b * c for b, c in zip(before, reversed(after), strict=True)]


# --- samples

def _samples(rng: np.random.Generator, dtype: DType) -> Iterator[Sample]:
    def x(*shape: int) -> np.ndarray:
        return random_array(rng, dtype, shape, -2, 2) if dtype.is_float else random_array(rng, dtype, shape)

    def case(kind: str, *window: int, **changes: Any) -> dict[str, Any]:
        ones = (1,) * len(window)
        return {"kind": kind, "window": window, "strides": ones, "padding": ((0, 0),) * len(window),
                "dilation": ones, **changes}
    for kind in _KINDS:
        yield Sample((x(17),), case(kind, 3), f"{kind}, one axis")
        pool = {"strides": (1, 1, 2, 2), "padding": ((0, 0), (0, 0), (1, 1), (1, 0))}
        yield Sample((x(2, 3, 9, 8),), case(kind, 1, 1, 3, 2, **pool), f"{kind}, pooling")
        yield Sample((x(11, 12),), case(kind, 3, 2, dilation=(2, 3), strides=(1, 2)), f"{kind}, dilated")
        yield Sample((with_specials(rng, x(9, 17), dtype),), case(kind, 2, 3), f"{kind}, special")
        yield Sample((strided(x(7, 9)),), case(kind, 2, 2), f"{kind}, strided")
        yield Sample((x(0, 9),), case(kind, 1, 2), f"{kind}, empty")
        yield Sample((x(4, 5),), case(kind, 4, 5), f"{kind}, whole")
    yield Sample((x(1, 16, 68, 68),), case("max", 1, 1, 3, 3), "parallel")


reduce_window = define("reduce_window", "window", _rule, _meaning, operands=1, dtypes=NUMBERS,
                       attributes=WindowAttributes, traits={"reduction"}, tolerance="reduction",
                       samples=_samples, gradient=_gradient)
