"""torch's dtypes and ours, and torch's rule for the dtype of an operation on several operands.

Operands count by category (bool < integer < float) and, within one, tensors with axes before tensors without,
before numbers: a number or a tensor without axes changes the dtype only if its category is higher.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache, reduce
from typing import Any

from planish.errors import UnsupportedDType
from planish.ir import Node
from planish.types import (
    BFLOAT16,
    BOOL,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    INT8,
    INT16,
    INT32,
    INT64,
    UINT8,
    UINT16,
    UINT32,
    UINT64,
    DType,
    Expr,
)


@dataclass(frozen=True)
class Number:
    """A Python number that is known only at run time: a scalar node, of dtype i64, f64 or bool."""

    node: Node


@lru_cache(maxsize=1)
def _pairs() -> dict[Any, DType]:
    import torch

    return {
        torch.bool: BOOL,
        torch.uint8: UINT8,
        torch.int8: INT8,
        torch.int16: INT16,
        torch.int32: INT32,
        torch.int64: INT64,
        torch.uint16: UINT16,
        torch.uint32: UINT32,
        torch.uint64: UINT64,
        torch.float16: FLOAT16,
        torch.bfloat16: BFLOAT16,
        torch.float32: FLOAT32,
        torch.float64: FLOAT64,
    }


def own_dtype(foreign: Any) -> DType:
    """Our dtype for one of torch's. Raises UnsupportedDType."""
    found = _pairs().get(foreign)
    if found is None:
        raise UnsupportedDType(f"{foreign} is not among planish's dtypes")
    return found


def part_dtype(foreign: Any) -> DType:
    """Our dtype for one of torch's; of a complex one, its parts'. Raises UnsupportedDType."""
    return own_dtype(foreign.to_real() if foreign.is_complex else foreign)


@lru_cache(maxsize=1)
def foreign_dtypes() -> dict[DType, Any]:
    """Our dtypes -> torch's."""
    return {ours: theirs for theirs, ours in _pairs().items()}


def _category(dtype: DType) -> int:
    return 2 if dtype.is_float else 1 if dtype.is_integer else 0


def _of_number(x: Any) -> DType:
    if isinstance(x, Number):
        return FLOAT32 if x.node.dtype.is_float else x.node.dtype
    return BOOL if isinstance(x, bool) else INT64 if isinstance(x, (int, Expr)) else FLOAT32


def _wider(a: DType, b: DType) -> DType:
    """torch.promote_types."""
    if a is b:
        return a
    import torch

    foreign = foreign_dtypes()
    return own_dtype(torch.promote_types(foreign[a], foreign[b]))


def promote(*operands: Any) -> DType:
    """The dtype that torch computes nodes and numbers in (torch.result_type)."""
    nodes = [x for x in operands if isinstance(x, Node)]
    ranks = (
        [x.dtype for x in nodes if x.ndim],
        [x.dtype for x in nodes if not x.ndim],
        [_of_number(x) for x in operands if not isinstance(x, Node)],
    )
    result: DType | None = None
    for dtypes in ranks:
        if not dtypes:
            continue
        found = reduce(_wider, dtypes)
        if result is None or _category(found) > _category(result):
            result = found
    if result is None:
        raise TypeError("an operation without operands")
    return result
