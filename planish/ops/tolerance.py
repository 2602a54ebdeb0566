"""How close is the same answer: one table, by the op's class and the dtype. No test has one of its own.

`ulp` counts units in the last place of the expected value; `scale` bounds the error of long sums relative to
the sum of magnitudes that went in (about gamma_n of Higham, Accuracy and Stability, ch. 3, for blocked
summation).
"""
from __future__ import annotations

from dataclasses import dataclass

from planish.types import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, DType


@dataclass(frozen=True)
class Tolerance:
    ulp: float
    scale: float = 0.0


EXACT = Tolerance(0.0)
_TABLE = {
    "exact": {},
    "rounded": {FLOAT16: Tolerance(1), BFLOAT16: Tolerance(1), FLOAT32: Tolerance(1), FLOAT64: Tolerance(1)},
    "transcendental": {FLOAT16: Tolerance(1), BFLOAT16: Tolerance(1), FLOAT32: Tolerance(5),
                       FLOAT64: Tolerance(8)},
    "reduction": {FLOAT16: Tolerance(4, 2e-3), BFLOAT16: Tolerance(4, 1.6e-2), FLOAT32: Tolerance(4, 1e-6),
                  FLOAT64: Tolerance(4, 1e-15)},
    "contraction": {FLOAT16: Tolerance(4, 2e-3), BFLOAT16: Tolerance(4, 1.6e-2), FLOAT32: Tolerance(4, 2e-6),
                    FLOAT64: Tolerance(4, 4e-15)},
    "composite": {FLOAT16: Tolerance(8, 4e-3), BFLOAT16: Tolerance(8, 3.2e-2), FLOAT32: Tolerance(16, 4e-6),
                  FLOAT64: Tolerance(16, 1e-14)},
}
CLASSES = tuple(_TABLE)


def tolerance(kind: str, dtype: DType) -> Tolerance:
    """The tolerance of class `kind` at `dtype`; integers and bool are always exact."""
    return _TABLE[kind].get(dtype, EXACT)
