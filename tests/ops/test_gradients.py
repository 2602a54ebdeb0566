"""Gradients against finite differences in float64, along random directions, on the records' own samples."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from planish.ops import OPS, Op, Sample
from planish.types import BOOL, FLOAT64, dtype_of
from tests.ops.cases import RECORDS, evaluate, samples_of

STEP = 1e-6
MOST = 2500  # elements of a result


def is_float(array: Any) -> bool:
    return array.dtype == np.float64


def usable(op: Op, sample: Sample) -> bool:
    """Smooth where it is: random values, results of float64, no update overwritten by another."""
    # next_after moves by no more than a rounding, so its slope is that of its first operand.
    if any(word in sample.label for word in ("special", "parallel", "1000", "ties")):
        return False
    if sample.attributes.get("dtype", FLOAT64) is not FLOAT64:
        return False
    if op.name in ("scatter_along", "scatter_nd") and sample.attributes["reduction"] == "none":
        return False
    return any(map(is_float, sample.operands)) and all(
        a.size <= MOST and not (is_float(a) and np.isnan(a).any()) for a in evaluate(op, sample))


def gradient_cases() -> list[Any]:
    found = []
    for op in RECORDS:
        takes_floats = FLOAT64 in op.dtypes or op.name == "select"
        if op.gradient is not None and takes_floats and op.name not in ("iota", "size"):
            found.append(pytest.param(op, FLOAT64 if FLOAT64 in op.dtypes else BOOL, id=op.name))
    return found


def slope(op: Op, sample: Sample, directions: list[Any], weights: list[Any]) -> float:
    """The derivative of the weighted sum of results, by the five-point stencil."""
    def at(t: float) -> float:
        moved = tuple(a if d is None else a + t * d for a, d in zip(sample.operands, directions, strict=True))
        results = evaluate(op, Sample(moved, sample.attributes))
        pairs = [(r[w != 0], w[w != 0]) for r, w in zip(results, weights, strict=True) if w is not None]
        return sum(float(np.sum(r * w)) for r, w in pairs)
    return (8 * (at(STEP) - at(-STEP)) - (at(2 * STEP) - at(-2 * STEP))) / (12 * STEP)


def cotangents(op: Op, sample: Sample, weights: list[Any]) -> Any:
    results = evaluate(op, sample)
    several = isinstance(op.evaluate(op.make_attributes(sample.attributes), *sample.operands), tuple)
    g, result = (tuple(weights), results) if several else (weights[0], results[0])
    with np.errstate(all="ignore"):
        return op.gradient(g, op.make_attributes(sample.attributes), result, *sample.operands)


@pytest.mark.parametrize(("op", "dtype"), gradient_cases())
def test_gradient(op: Op, dtype: Any) -> None:
    rng = np.random.default_rng(1)
    checked = 0
    for sample in samples_of(op, dtype, seed=3):
        if not usable(op, sample):
            continue
        check(op, sample, rng)
        checked += 1
    assert checked >= 2


def check(op: Op, sample: Sample, rng: np.random.Generator) -> None:
    # Infinite results (the identity of an exclusive scan) stay so: they have no slope.
    weights = [np.where(np.isfinite(r), rng.uniform(0.5, 1.5, r.shape), 0) if is_float(r) else None
               for r in evaluate(op, sample)]
    directions = [rng.uniform(-1, 1, a.shape) if is_float(a) else None for a in sample.operands]
    expected = slope(op, sample, directions, weights) if any(w is not None for w in weights) else 0.0
    actual, scale = 0.0, 1.0
    if any(w is not None for w in weights):
        for g, a, d in zip(cotangents(op, sample, weights), sample.operands, directions, strict=True):
            if g is None or d is None:
                continue
            assert g.shape == a.shape and g.dtype == a.dtype, f"{op} {sample.label}"
            actual += float(np.sum(g * d))
            scale += float(np.sum(np.abs(g * d)))
    assert abs(actual - expected) <= 1e-6 * scale, f"{op} {sample.label}: {actual} is not {expected}"


@pytest.mark.parametrize("name", ["scatter_along", "scatter_nd"])
def test_gradient_of_overwriting(name: str) -> None:
    """Where no update is overwritten by another; one is outside and dropped."""
    rng = np.random.default_rng(0)
    index, attributes = np.array([[3], [-1], [9], [0]]), {"reduction": "none"}
    updates = rng.normal(size=(4, 2))
    if name == "scatter_along":
        updates, attributes = updates[:, :1], {"axis": 0, **attributes}
    check(OPS[name], Sample((rng.normal(size=(6, 2)), index, updates), attributes), rng)


def test_gradients_at_corners_are_the_usual_ones() -> None:
    x, g = np.array([-1.0, 0.0, 2.0, np.nan]), np.ones(4)
    relu = OPS["relu"]
    np.testing.assert_array_equal(relu.gradient(g, None, relu(x), x)[0], [0, 0, 1, 1])
    low, high = np.array(0.0), np.array(2.0)
    clip = OPS["clip"]
    np.testing.assert_array_equal(clip.gradient(g, None, clip(x, low, high), x, low, high)[0], [0, 1, 1, 1])
    both = np.array([1.0, 3.0])
    maximum = OPS["maximum"]
    shared = maximum.gradient(np.ones(2), None, maximum(both, 1.0), both, np.array(1.0))
    np.testing.assert_array_equal(shared[0], [0.5, 1])


def test_gradient_of_products_with_zeros() -> None:
    x = np.array([[2.0, 0.0, 3.0], [0.0, 0.0, 5.0], [1.0, 2.0, 3.0]])
    prod = OPS["reduce_prod"]
    attributes = prod.make_attributes({"axes": (1,)})
    np.testing.assert_array_equal(prod.gradient(np.ones(3), attributes, prod(x, axes=(1,)), x)[0],
                                  [[0, 6, 0], [0, 0, 0], [6, 3, 2]])
    cumprod = OPS["cumprod"]
    attributes = cumprod.make_attributes({"axis": 1})
    np.testing.assert_array_equal(cumprod.gradient(np.ones((3, 3)), attributes, cumprod(x, axis=1), x)[0],
                                  [[1, 8, 0], [1, 0, 0], [9, 4, 2]])


def test_casts_are_undone() -> None:
    x = np.ones(3, np.float32)
    cast = OPS["cast"]
    for to, expected in ((np.float16, np.float32), (np.float64, np.float32), (np.int32, None)):
        attributes = cast.make_attributes({"dtype": dtype_of(to)})
        g, = cast.gradient(np.ones(3, to), attributes, x.astype(to), x)
        assert (g is None) == (expected is None) and (g is None or g.dtype == expected)
