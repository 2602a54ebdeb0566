"""The samples of the records, as the tests of this folder use them."""
from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from planish.ops import OPS, Op, Sample
from planish.types import DType, TensorType, dtype_of

RECORDS = [op for op in OPS.values() if op.family not in ("structure", "control", "host")]


def samples_of(op: Op, dtype: DType, seed: int = 0) -> Iterator[Sample]:
    return op.samples(np.random.default_rng(seed), dtype)


def types_of(arrays: Any) -> tuple[TensorType, ...]:
    return tuple(TensorType(dtype_of(a), a.shape) for a in arrays)


def evaluate(op: Op, sample: Sample) -> tuple[np.ndarray, ...]:
    """The results, always as a tuple."""
    result = op.evaluate(op.make_attributes(sample.attributes), *sample.operands)
    return result if isinstance(result, tuple) else (result,)


def assert_same(actual: Any, expected: Any, message: str = "") -> None:
    """Same dtype, shape and bits, but any NaN equals any NaN."""
    actual, expected = np.asarray(actual), np.asarray(expected)
    assert actual.dtype == expected.dtype, message
    assert actual.shape == expected.shape, message
    if actual.dtype.kind in "fV":
        nan = np.isnan(actual) & np.isnan(expected)
        equal = (actual == expected) & (np.signbit(actual) == np.signbit(expected)) | nan
    else:
        equal = actual == expected
    assert np.all(equal), f"{message}: {np.sum(~equal)} of {equal.size} differ"
