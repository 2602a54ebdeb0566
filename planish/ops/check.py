"""check: an effect that raises when its condition does not hold. It is never dropped nor moved."""
from __future__ import annotations

import builtins
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from planish.ops.record import Sample
from planish.ops.rules import BITS, define, no_slope, require
from planish.types import DType, TensorType


@dataclass(frozen=True)
class CheckAttributes:
    """`error` names the built-in exception the front end raises."""

    error: str
    message: str


def error_class(name: str) -> type[Exception] | None:
    """The built-in exception of that name."""
    found = getattr(builtins, name, None)
    return found if isinstance(found, type) and issubclass(found, Exception) else None


def _check_rule(attributes: CheckAttributes, pred: TensorType) -> TensorType:
    require(pred.shape == (), "the condition is to be a scalar; reduce it with reduce_all")
    require(error_class(attributes.error) is not None,
            f"{attributes.error} is not the name of a built-in exception")
    return pred


def _check(a: CheckAttributes, pred: np.ndarray) -> np.ndarray:
    error = error_class(a.error)
    if error is not None and not pred:
        raise error(a.message)
    return pred


def _check_samples(rng: np.random.Generator, dtype: DType) -> Iterator[Sample]:
    yield Sample((np.array(True),), {"error": "IndexError", "message": "index out of range"}, "holds")


check = define("check", "check", _check_rule, _check, operands=1, dtypes=BITS[:1], attributes=CheckAttributes,
               traits={"effect"}, samples=_check_samples, gradient=no_slope)
