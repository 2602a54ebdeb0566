"""Programs made of sample operands, run as native code and judged by the NumPy meaning of their ops.

In: op records with their samples. Out: graphs that hold many samples of one op at once (compiling is what
costs), and `check`, which says where a result is further from the record's meaning than the dtype table of
ops/tolerance.py allows.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from planish.compiler import Options, compile_graph
from planish.ir import Graph, get_item, input_node
from planish.ir.node import make_node
from planish.ops import OPS, Op, Sample
from planish.ops.tolerance import Tolerance, tolerance
from planish.types import FLOAT32, TensorType, dtype_of

SUMS = {"reduce_sum", "cumsum", "dot_general", "conv", "matmul", "mean"}
PRODUCTS = {"reduce_prod", "cumprod"}
CENTRED = {"layer_norm", "variance"}
# Of zeros of both signs NumPy takes one or the other, by dtype, length and machine.
EXTREMA = {"maximum", "minimum", "fmax", "fmin", "clip", "relu", "reduce_max", "reduce_min", "reduce_window",
           "cummax", "cummin"}
Results = tuple[np.ndarray, ...]


# --- graphs

def graph_of(op: Op, samples: Sequence[Sample]) -> Graph:
    """One graph with every sample's operands as inputs and every result as an output."""
    inputs: list[Any] = []
    outputs: list[Any] = []
    for sample in samples:
        first = len(inputs)
        inputs += [input_node(f"x{first + i}", TensorType(dtype_of(a), a.shape))
                   for i, a in enumerate(sample.operands)]
        node = make_node(op, tuple(inputs[first:]), op.make_attributes(sample.attributes))
        several = isinstance(node.type, tuple)
        outputs += [get_item(node, i) for i in range(len(node.type))] if several else [node]
    return Graph(tuple(inputs), tuple(outputs), name=op.name)


def operands_of(samples: Sequence[Sample]) -> list[np.ndarray]:
    return [a for s in samples for a in s.operands]


def run_native(graph: Graph, arrays: Sequence[np.ndarray], numerics: Any = "default") -> Results:
    return compile_graph(graph, Options(numerics=numerics))(*arrays)


def evaluate(op: Op, sample: Sample, *operands: np.ndarray) -> Results:
    """The record's meaning of a sample, or of other operands under its attributes."""
    result = op.evaluate(op.make_attributes(sample.attributes), *(operands or sample.operands))
    return result if isinstance(result, tuple) else (np.asarray(result),)


# --- judgement

@dataclass(frozen=True)
class Judgement:
    """What a result is measured by: `magnitude` scales the bound of long sums (elementwise, float64); where
    `open` is true, intermediate overflow or underflow makes the result depend on the order of the steps, and
    nothing is said. `any_zero`: zeros of either sign will do."""

    tolerance: Tolerance
    magnitude: np.ndarray
    open: np.ndarray
    any_zero: bool = False


def judgement(op: Op, sample: Sample, expected: np.ndarray) -> Judgement:
    """By the op's class; sums by the sum of magnitudes that went in (Higham, ch. 3 and 4), products by the
    root of the number of factors."""
    bound = tolerance(op.tolerance, dtype_of(expected))
    magnitude, is_open = np.abs(_finite(expected)), np.zeros(expected.shape, bool)
    kind = sample.attributes.get("kind")
    if op.name == "lgamma":  # for x < 0 the reflection formula cancels near the zeros of the result
        magnitude = np.where(sample.operands[0] < 0, np.maximum(magnitude, 1), magnitude)
        bound = Tolerance(bound.ulp, bound.ulp * float(ml_dtypes.finfo(expected.dtype).eps))
    if bound.scale and (op.name in SUMS or kind == "sum"):
        magnitude = evaluate(op, sample, *map(_magnitudes, sample.operands))[0]
        is_open = magnitude >= _largest(sample.operands[0])
    elif bound.scale and (op.name in PRODUCTS or kind == "prod"):
        most = evaluate(op, sample, np.maximum(_magnitudes(sample.operands[0]), 1))[0]
        factors = max(1, sample.operands[0].size / max(1, expected.size))
        magnitude = magnitude * np.sqrt(factors) + most * _smallest(expected) * factors / bound.scale
        least = evaluate(op, sample, np.where(_magnitudes(sample.operands[0]) == 0, 1,
                                              np.minimum(_magnitudes(sample.operands[0]), 1)))[0]
        any_infinite = evaluate(op, sample, 1.0 - np.isinf(sample.operands[0].astype(np.float64)))[0] == 0
        is_open = (most >= _largest(sample.operands[0])) | any_infinite & (least < _smallest_normal(expected))
    elif bound.scale and op.tolerance == "composite":
        own = _own_error(op, sample, expected) / bound.scale
        magnitude = np.full(expected.shape, np.max(magnitude, initial=0.0) + own)
        if op.name in CENTRED:
            is_open = _mean_may_overflow(sample, expected.shape)
    return Judgement(bound, magnitude, is_open, op.name in EXTREMA)


def _own_error(op: Op, sample: Sample, expected: np.ndarray) -> float:
    """What a sequence of rounded steps may be off by: the largest error of the record's own meaning against
    float64, here and at operands nearby (of float64 itself, what that of float32 suggests), as many times as
    a function of ours may be off by ULPs where NumPy's is by one; or four times what rounding the operands
    does."""
    times = tolerance("transcendental", FLOAT32).ulp
    eps = float(ml_dtypes.finfo(expected.dtype).eps)
    narrow = np.dtype(np.float32) if expected.dtype == np.float64 else expected.dtype
    ratio = eps / float(ml_dtypes.finfo(narrow).eps)
    error = 0.0
    for seed in range(1 if expected.size > 1000 else 8):
        nearby = _changed(sample, 1e-3 * (seed > 0), seed, narrow)
        exact = evaluate(op, sample, *map(_wide, nearby))[0]
        error = max(error, _distance(evaluate(op, sample, *nearby)[0], exact))
    wide = np.dtype(np.float64)
    moved, exact = (evaluate(op, sample, *_changed(sample, change, 0, wide))[0] for change in (1e-6, 0))
    return max(times * ratio * error, 4 * (eps / 1e-6) * _distance(moved, exact))


def _mean_may_overflow(sample: Sample, shape: tuple[int, ...]) -> np.ndarray:
    """Where the sum that a mean begins with is infinite or not by the order of its terms."""
    x = sample.operands[0]
    axes = sample.attributes.get("axes", range(-sample.attributes.get("axes_count", 0), 0))
    with np.errstate(over="ignore"):
        found = np.sum(_magnitudes(x), axis=tuple(axes), keepdims=True) > _largest(x)
    return found.reshape(shape) if found.size == np.prod(shape) else np.broadcast_to(found, shape)


def _wide(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float64) if dtype_of(x).is_float else x


def _changed(sample: Sample, change: float, seed: int, dtype: np.dtype) -> list[np.ndarray]:
    """The operands, floats changed by a fraction of either sign and rounded to `dtype`."""
    signs = np.random.default_rng(seed)
    return [np.asarray(_wide(a) * (1 + change * signs.choice((-1, 1), a.shape))).astype(dtype)
            if dtype_of(a).is_float else a for a in sample.operands]


def _distance(x: np.ndarray, y: np.ndarray) -> float:
    return float(np.max(np.abs(_finite(x) - _finite(y)), initial=0.0))


def _finite(x: np.ndarray) -> np.ndarray:
    wide = np.asarray(x, np.float64)
    return np.where(np.isfinite(wide), wide, 0)


def _magnitudes(x: np.ndarray) -> np.ndarray:
    return np.abs(_finite(x))


def _largest(x: np.ndarray) -> float:
    """Of the dtype in which `x` is accumulated."""
    return float(ml_dtypes.finfo(dtype_of(x).accumulator.numpy).max)


def _smallest(x: np.ndarray) -> float:
    return float(ml_dtypes.finfo(x.dtype).smallest_subnormal)


def _smallest_normal(x: np.ndarray) -> float:
    return float(ml_dtypes.finfo(x.dtype).smallest_normal)


def spacing(x: np.ndarray) -> np.ndarray:
    """The distance from |x| to the next larger number of its dtype, in float64."""
    info = ml_dtypes.finfo(x.dtype)
    _, exponent = np.frexp(np.abs(_finite(x)))
    least = int(np.log2(float(info.smallest_normal)))
    return np.ldexp(1.0, np.maximum(exponent - 1, least) - info.nmant)


def faults(actual: np.ndarray, expected: np.ndarray, by: Judgement) -> np.ndarray:
    """Where the two are not the same answer: any NaN is as good as another, zeros have signs."""
    if expected.dtype.kind in "biu":
        return np.asarray(actual != expected)
    got, wanted = actual.astype(np.float64), expected.astype(np.float64)
    nan = np.isnan(got) & np.isnan(wanted)
    any_zero = by.any_zero or by.tolerance.scale > 0
    signed = (np.signbit(got) == np.signbit(wanted)) | any_zero & (wanted == 0)
    same = (got == wanted) & signed | nan
    if by.tolerance.ulp:
        with np.errstate(all="ignore"):
            room = by.tolerance.ulp * spacing(expected) + by.tolerance.scale * by.magnitude
            same |= np.abs(_bounded(got, expected.dtype) - _bounded(wanted, expected.dtype)) <= room
    return ~(same | by.open)


def _bounded(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Infinity as the number that first rounds to it, so that overflow too is a matter of rounding."""
    most = float(ml_dtypes.finfo(dtype).max)
    edge = most * (1 + 2.0 ** -(ml_dtypes.finfo(dtype).nmant + 1))
    return np.where(np.isinf(x), np.copysign(edge if np.isfinite(edge) else most, x), x)


def complaint(op: Op, sample: Sample, actual: np.ndarray, expected: np.ndarray) -> str:
    """What is wrong with a result, or nothing."""
    if actual.dtype != expected.dtype or actual.shape != expected.shape:
        return f"{actual.dtype}{actual.shape} instead of {expected.dtype}{expected.shape}"
    wrong = faults(actual, expected, judgement(op, sample, expected))
    if not np.any(wrong):
        return ""
    places = np.argwhere(wrong)[:4].tolist()
    shown = [f"{at}: {actual[tuple(at)]!r}, not {expected[tuple(at)]!r}" for at in places]
    return f"{np.count_nonzero(wrong)} of {wrong.size} differ: {'; '.join(shown)}"


def check(op: Op, samples: Sequence[Sample], results: Sequence[np.ndarray]) -> None:
    """AssertionError with every sample whose results are not those of the record."""
    remaining = iter(results)
    found = []
    for sample in samples:
        for expected in evaluate(op, sample):
            problem = complaint(op, sample, next(remaining), expected)
            if problem:
                found.append(f"{sample.label} {dict(sample.attributes)}: {problem}")
    assert next(remaining, None) is None
    assert not found, f"{op.name}: " + "\n".join(found)


def check_native(op: Op, samples: Sequence[Sample], numerics: Any = "default") -> None:
    check(op, samples, run_native(graph_of(op, samples), operands_of(samples), numerics))


PRIMITIVES = [op for op in OPS.values() if op.family not in ("structure", "control")]
