"""Points of loop nests as arrays: index expressions evaluated at all of them at once.

An environment maps names to ints or to int64 arrays with one entry per point.
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np

from planish.schedule.kernel import Axis
from planish.types import Dim, Symbol
from planish.types.dim import Atom, Extreme, Quotient

Number = int | np.ndarray
Environment = Mapping[str, Number]


def dim_values(dim: Dim, environment: Environment) -> Number:
    """An index expression at every point. Raises KeyError naming a symbol without a value."""
    if isinstance(dim, int):
        return dim
    return sum(prod((_atom_values(a, environment) for a in monomial), start=coefficient)
               for monomial, coefficient in dim.terms)


def _atom_values(atom: Atom, environment: Environment) -> Number:
    if isinstance(atom, Symbol):
        return environment[atom.name]
    if isinstance(atom, Extreme):
        extreme = np.maximum if atom.which == "max" else np.minimum
        return extreme(dim_values(atom.left, environment), dim_values(atom.right, environment))
    numerator, divisor = dim_values(atom.numerator, environment), dim_values(atom.divisor, environment)
    return numerator // divisor if isinstance(atom, Quotient) else numerator % divisor


def loop_points(axes: Sequence[Axis], outer: Mapping[str, int]) -> tuple[dict[str, Number], int]:
    """All points of a nest in loop order, and how many; an extent may depend on outer axes."""
    inner: dict[str, np.ndarray] = {}
    count = 1
    for axis in axes:
        extents = np.broadcast_to(dim_values(axis.extent, {**outer, **inner}), (count,))
        trips = np.maximum(extents, 0).astype(np.int64)
        owner = np.repeat(np.arange(count), trips)
        count = len(owner)
        inner = {name: values[owner] for name, values in inner.items()}
        inner[axis.name] = np.arange(count) - (np.cumsum(trips) - trips)[owner]
    return {**outer, **inner}, count


def corner_points(sizes: Sequence[Symbol], axes: Sequence[Axis]) -> tuple[dict[str, Number], int]:
    """Points with every size at an end of its range and every axis at its first or last value, and how many.

    A size without an upper limit is taken at its lower one and a little above. The loops reach all of them.
    """
    corners: dict[str, np.ndarray] = {}
    count = 1
    for size in sizes:
        high = size.low + 13 if size.high is None else size.high
        highs = np.broadcast_to(dim_values(high, corners), (count,))
        corners, count = _split(corners, size.name, size.low, highs)
    for axis in axes:
        last = np.broadcast_to(dim_values(axis.extent, corners), (count,)) - 1
        corners, count = _split(corners, axis.name, 0, last)
    return dict(corners), count


MOST_CORNERS = 4096


def _split(corners: dict[str, np.ndarray], name: str, low: int,
           high: np.ndarray) -> tuple[dict[str, np.ndarray], int]:
    """Every corner at `low` and, where it is another value, at `high`; none where high < low."""
    live, other = np.flatnonzero(high >= low), np.flatnonzero(high > low)
    owner = np.concatenate([live, other])[-MOST_CORNERS:]
    values = np.concatenate([np.full(len(live), low), high[other]])[-MOST_CORNERS:]
    return {**{n: v[owner] for n, v in corners.items()}, name: values}, len(owner)
